"""The schema of a source as the store has it: read, chosen, widened.

Contract     `columns` and `version` are the newest that are known here; a publish tells when there
             are newer ones. A version is never changed, only followed by one with more columns, so
             rows of all versions fit the newest. The table is asked before a version is stored:
             what is published can be exported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidError
from penstock.source.requests import Ask, GetSchema, PutSchema, SourceInfo
from penstock.spark.ingest.schema import from_text, to_text, widens


class StoredSchema:
    def __init__(
        self,
        source: SourceInfo,
        *,
        ask: Callable[[Ask[Any]], Any],
        accept: Callable[[pa.Schema], None],
    ) -> None:
        self._source = source
        self._ask = ask
        #: Raises if the table cannot have these columns.
        self._accept = accept
        self.version = source.schema_version
        #: None: there is none yet.
        self.columns = from_text(source.schema) if source.schema_version else None

    def use(self, given: pa.Schema) -> None:
        """One that the user gave, or that the format has: the stored one, or one that widens it."""
        while self.columns is None or not widens(given, self.columns):
            if self.columns is not None and not widens(self.columns, given):
                raise InvalidError(
                    f"the source {self._source.name!r} has the schema {_ddl(self.columns)}, not "
                    f"{_ddl(given)}",
                    hint="columns can be added behind those; for anything else take another table",
                )
            self._put(given)

    def widen(self, found: pa.Schema, *, evolve: bool) -> None:
        """By what was found in files; without `evolve` only where there is none yet."""
        while True:
            known = self.columns if self.columns is not None else pa.schema([])
            names = {name.casefold() for name in known.names}
            new = [field for field in found if field.name.casefold() not in names]
            if not new:
                return
            wanted = pa.schema([*known, *new])
            self._put(wanted)
            if not evolve or self.columns == wanted:
                return

    def refresh(self) -> None:
        stored = self._ask(GetSchema(self._source.id))
        self.version = stored.version
        self.columns = from_text(stored.schema) if stored.version else None

    def _put(self, columns: pa.Schema) -> None:
        """The next version, unless somebody was faster; then theirs is known here now."""
        self._accept(columns)
        stored = self._ask(PutSchema(self._source.id, self.version, to_text(columns)))
        self.version, self.columns = stored.version, from_text(stored.schema)


def _ddl(columns: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in columns)
