"""The schema of a source as the store has it: read, chosen, widened.

Contract     `columns` and `version` are the newest that are known here; a publish tells when there
             are newer ones. A version is never changed, only followed by one with more columns, so
             rows of all versions fit the newest. The table is asked before a version is stored,
             and that it can be read back is tried: what is published can be exported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidError
from penstock.source.requests import Ask, GetSchema, PutSchema, SourceInfo
from penstock.spark.ingest.schema import as_stored, fitting, from_text, to_text, widens

_log = logging.getLogger("penstock")


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
        self.columns = stored_columns(source)

    def use(self, given: pa.Schema) -> None:
        """One that the user gave, or that the format has: the stored one, or one that widens it."""
        while self.columns is None or not widens(given, self.columns):
            check_given(self._source.name, given, self.columns)
            self._put(given)

    def widen(self, found: pa.Schema, *, evolve: bool) -> None:
        """By what was found in files; without `evolve` only where there is none yet."""
        while True:
            known = self.columns if self.columns is not None else pa.schema([])
            names = {name.casefold() for name in known.names}
            new = [field for field in found if field.name.casefold() not in names]
            if not new:
                return
            added = fitting(new, known)
            if len(added) < len(new):
                _log.warning(
                    "%d more fields have no column: they are rescued", len(new) - len(added)
                )
            if not added:
                return
            wanted = as_stored(pa.schema([*known, *added]))
            self._put(wanted)
            if not evolve or self.columns == wanted:
                return

    def check(self) -> None:
        """Refuse a table that cannot have what is known already: then nothing can be loaded."""
        self._accept(self.columns if self.columns is not None else pa.schema([]))

    def refresh(self) -> None:
        stored = self._ask(GetSchema(self._source.id))
        self.version = stored.version
        self.columns = from_text(stored.schema) if stored.version else None

    def _put(self, columns: pa.Schema) -> None:
        """The next version, unless somebody was faster; then theirs is known here now."""
        self._accept(columns)
        if as_stored(columns) != columns:
            raise InvalidError(f"these columns are others when they are read: {_ddl(columns)}")
        stored = self._ask(PutSchema(self._source.id, self.version, to_text(columns)))
        self.version, self.columns = stored.version, from_text(stored.schema)


def stored_columns(source: SourceInfo) -> pa.Schema | None:
    """None: there are none yet."""
    return from_text(source.schema) if source.schema_version else None


def check_given(name: str, given: pa.Schema, stored: pa.Schema | None) -> None:
    """Refuse what neither is in the stored one nor widens it."""
    if stored is None or widens(given, stored) or widens(stored, given):
        return
    raise InvalidError(
        f"the source {name!r} has the schema {_ddl(stored)}, not {_ddl(given)}",
        hint="columns can be added behind those; for anything else take another table",
    )


def _ddl(columns: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in columns)
