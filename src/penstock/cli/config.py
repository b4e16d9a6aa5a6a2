"""`penstock.toml`: what the commands of a project take for granted.

    location = "./data"            # of every command that has --location

    [serve]                        # of `penstock serve` and `penstock up`
    resp = "127.0.0.1:7379"
    password_file = "secret.txt"

Contract     The nearest one is used, from the working folder upwards. Paths in it are relative to
             the folder that it is in. What stands on the command line or in the environment comes
             first. A name or value that is not known is an InvalidError: a misspelt setting must
             not go unnoticed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.errors import InvalidError
from penstock.store.location import folder_of

FILE = "penstock.toml"


class ServeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    resp: str | None = None
    password_file: Path | None = None


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    location: str | None = None
    serve: ServeConfig = msgspec.field(default_factory=ServeConfig)


def find_config(start: Path | None = None) -> Path | None:
    """The nearest file, from `start` (the working folder) upwards."""
    folder = (start or Path.cwd()).absolute()
    for each in (folder, *folder.parents):
        if (each / FILE).is_file():
            return each / FILE
    return None


def load_config(start: Path | None = None) -> Config:
    """What the nearest file says, with its paths made absolute; nothing where there is none."""
    path = find_config(start)
    if path is None:
        return Config()
    try:
        config = msgspec.toml.decode(path.read_bytes(), type=Config, dec_hook=_decode)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"{path}: {error}", hint="fix the file, or remove it") from None
    location, password_file = config.location, config.serve.password_file
    if location is not None and not location.startswith("penstock://"):
        folder = folder_of(location)
        if folder is not None and "://" not in location and not location.startswith("~"):
            location = str(path.parent / location)
    if password_file is not None:
        password_file = path.parent / password_file
    return Config(location, ServeConfig(config.serve.resp, password_file))


def _decode(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"a {kind.__name__} is text")
