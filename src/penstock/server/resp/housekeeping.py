"""The commands that real clients send besides those they came for. Answered at once.

Contract     `HANDLERS[name](connection, words) -> reply`. Arity is checked before. Answers are
             those of Redis 7.4 where a client could look at them, errors included; what does not
             exist here (databases, caching, settings to change) is refused in plain words.
Not here     INFO (info.py), the stream commands (streams.py), the table of commands (commands.py).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.codec.resp import OK, Reply, Simple, bulk, encode, error
from penstock.errors import InvalidError
from penstock.server.resp.commands import COMMANDS, Command, key_positions
from penstock.server.resp.errors import unknown_subcommand
from penstock.server.resp.info import REDIS_VERSION, info
from penstock.server.resp.words import number, text
from penstock.stream.glob import check_patterns, compile_glob

if TYPE_CHECKING:
    from penstock.server.resp.connection import Connection
    from penstock.server.serve import Server

Handler = Callable[["Connection", list[bytes]], bytes]

WRONGPASS = error("WRONGPASS", "invalid username-password pair or user is disabled.")
NO_PASSWORD = error(
    "ERR",
    "AUTH <password> called without any password configured for the default user. "
    "Are you sure your configuration is correct?",
)
NOPROTO = error("NOPROTO", "unsupported protocol version")
HELLO_NOAUTH = error(
    "NOAUTH",
    "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH "
    "<user> <pass> option can be used to authenticate the client and select the RESP protocol "
    "version at the same time",
)


# ---- the connection ---------------------------------------------------------------------------


def ping(connection: Connection, words: list[bytes]) -> bytes:
    if len(words) > 2:
        raise InvalidError("wrong number of arguments for 'ping' command", hint="PING [message]")
    return bulk(words[1]) if len(words) == 2 else b"+PONG\r\n"


def echo(connection: Connection, words: list[bytes]) -> bytes:
    return bulk(words[1])


def quit_(connection: Connection, words: list[bytes]) -> bytes:
    connection.closing = True
    return OK


def reset(connection: Connection, words: list[bytes]) -> bytes:
    connection.protocol = 2
    connection.name = ""
    connection.reply_mode = "on"
    connection.forget_authentication()
    return b"+RESET\r\n"


def select(connection: Connection, words: list[bytes]) -> bytes:
    if number(words[1], "index", low=-(1 << 31)):
        return error("ERR", "DB index is out of range")
    return OK


def auth(connection: Connection, words: list[bytes]) -> bytes:
    if len(words) > 3:
        raise InvalidError("AUTH takes a password", hint=COMMANDS["AUTH"].usage)
    if len(words) == 2 and not connection.server.password:
        return NO_PASSWORD
    user = words[1] if len(words) == 3 else b"default"
    return OK if _authenticate(connection, user, words[-1]) else WRONGPASS


def _authenticate(connection: Connection, user: bytes, password: bytes) -> bool:
    expected = connection.server.password
    if user != b"default":
        return False
    # Without a password any is right, as for Redis' default user.
    if expected and not hmac.compare_digest(expected.encode(), password):
        return False
    connection.authenticate()
    return True


def hello(connection: Connection, words: list[bytes]) -> bytes:
    protocol = connection.protocol
    if len(words) > 1:
        if words[1] not in (b"2", b"3"):
            return NOPROTO
        protocol = int(words[1])
    at, name = 2, None
    while at < len(words):
        option, left = words[at].upper(), len(words) - at - 1
        if option == b"AUTH" and left >= 2:
            if not _authenticate(connection, words[at + 1], words[at + 2]):
                return WRONGPASS
            at += 3
        elif option == b"SETNAME" and left >= 1:
            name = _client_name(words[at + 1])
            at += 2
        else:
            shown = words[at][:64].decode("utf-8", "backslashreplace")
            return error("ERR", f"Syntax error in HELLO option '{shown}'")
    if not connection.authenticated:
        return HELLO_NOAUTH
    connection.protocol = protocol
    connection.name = connection.name if name is None else name
    greeting: dict[str, Reply] = {
        "server": "redis",
        "version": REDIS_VERSION,
        "proto": protocol,
        "id": connection.id,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }
    return encode(greeting, protocol)


def _client_name(word: bytes) -> str:
    name = text(word, "a client's name")
    if any(not "!" <= char <= "~" for char in name):
        raise InvalidError("Client names cannot contain spaces, newlines or special characters.")
    return name


# ---- CLIENT -----------------------------------------------------------------------------------


def client(connection: Connection, words: list[bytes]) -> bytes:
    handler = _CLIENT.get(words[1].upper())
    if handler is None:
        return unknown_subcommand("CLIENT", words[1])
    lowest, highest = _CLIENT_WORDS.get(words[1].upper(), (2, 2))
    if not lowest <= len(words) <= highest:
        name = words[1].decode().lower()
        raise InvalidError(f"wrong number of arguments for 'client|{name}' command")
    return handler(connection, words)


def _client_id(connection: Connection, words: list[bytes]) -> bytes:
    return encode(connection.id, connection.protocol)


def _client_getname(connection: Connection, words: list[bytes]) -> bytes:
    return encode(connection.name or None, connection.protocol)


def _client_setname(connection: Connection, words: list[bytes]) -> bytes:
    connection.name = _client_name(words[2])
    return OK


def _client_setinfo(connection: Connection, words: list[bytes]) -> bytes:
    value = _client_name(words[3])
    name, lib_version = connection.library
    match words[2].upper():
        case b"LIB-NAME":
            connection.library = (value, lib_version)
        case b"LIB-VER":
            connection.library = (name, value)
        case _:
            shown = words[2][:64].decode("utf-8", "backslashreplace")
            return error("ERR", f"Unrecognized option '{shown}'")
    return OK


def _client_info(connection: Connection, words: list[bytes]) -> bytes:
    return bulk((_describe(connection) + "\n").encode())


def _client_list(connection: Connection, words: list[bytes]) -> bytes:
    clients = list(connection.server.clients.values())
    if len(words) > 2:
        option = words[2].upper()
        if option == b"ID" and len(words) > 3:
            wanted = {number(word, "client-id", low=1) for word in words[3:]}
            clients = [each for each in clients if each.id in wanted]
        elif option == b"TYPE" and len(words) == 4:
            clients = clients if words[3].lower() == b"normal" else []
        else:
            raise InvalidError("syntax error", hint="CLIENT LIST [TYPE type | ID id …]")
    return bulk("".join(_describe(each) + "\n" for each in clients).encode())


def _describe(connection: Connection) -> str:
    """One line, with the fields that Redis has and that mean something here."""
    now = connection.server.clock.monotonic()
    library, lib_version = connection.library
    flags = "b" if connection.blocked else "N"
    return (
        f"id={connection.id} addr={_address(connection, 'peername')}"
        f" laddr={_address(connection, 'sockname')} name={connection.name}"
        f" age={int(now - connection.since)} idle={int(now - connection.last_at)} flags={flags}"
        f" db=0 sub=0 psub=0 multi=-1 qbuf=0 omem={_unread(connection)} events=r"
        f" cmd={connection.last_command.lower() or 'NULL'} user=default"
        f" lib-name={library} lib-ver={lib_version} resp={connection.protocol}"
    )


def _unread(connection: Connection) -> int:
    return 0 if connection.transport is None else connection.transport.get_write_buffer_size()


def _address(connection: Connection, which: str) -> str:
    if connection.transport is None:
        return ""
    address = connection.transport.get_extra_info(which)
    if isinstance(address, tuple):
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        return f"{host}:{address[1]}"
    path = address.decode("utf-8", "backslashreplace") if isinstance(address, bytes) else address
    return f"{path or '(unix socket)'}:0"


def _client_kill(connection: Connection, words: list[bytes]) -> bytes:
    clients = list(connection.server.clients.values())
    if len(words) == 3:  # the old form: an address
        found = [each for each in clients if _address(each, "peername").encode() == words[2]]
        if not found:
            return error("ERR", "No such client")
        _kill(connection, found)
        return OK
    if len(words) % 2:
        raise InvalidError("syntax error", hint="CLIENT KILL [ID id] [ADDR ip:port] …")
    skip_me = True
    for option, value in zip(words[2::2], words[3::2], strict=True):
        match option.upper():
            case b"ID":
                wanted = number(value, "client-id", low=1)
                clients = [each for each in clients if each.id == wanted]
            case b"ADDR":
                clients = [each for each in clients if _address(each, "peername").encode() == value]
            case b"LADDR":
                clients = [each for each in clients if _address(each, "sockname").encode() == value]
            case b"SKIPME" if value.lower() in (b"yes", b"no"):
                skip_me = value.lower() == b"yes"
            case _:
                raise InvalidError("syntax error", hint="CLIENT KILL [ID id] [ADDR ip:port] …")
    found = [each for each in clients if each is not connection or not skip_me]
    _kill(connection, found)
    return encode(len(found), connection.protocol)


def _kill(connection: Connection, clients: list[Connection]) -> None:
    for each in clients:
        if each is connection:
            connection.closing = True  # after the reply
        else:
            each.cut()


def _client_unblock(connection: Connection, words: list[bytes]) -> bytes:
    wanted = number(words[2], "client-id", low=1)
    how = words[3].upper() if len(words) == 4 else b"TIMEOUT"
    if how not in (b"TIMEOUT", b"ERROR"):
        raise InvalidError("CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
    other = connection.server.clients.get(wanted)
    ended = other is not None and other.unblock("timeout" if how == b"TIMEOUT" else "error")
    return encode(int(ended), connection.protocol)


def _client_reply(connection: Connection, words: list[bytes]) -> bytes:
    match words[2].upper():
        case b"ON":
            connection.reply_mode = "on"
        case b"OFF":
            connection.reply_mode = "off"
        case b"SKIP":
            if connection.reply_mode == "on":
                connection.reply_mode = "skip"
        case _:
            raise InvalidError("syntax error", hint="CLIENT REPLY ON|OFF|SKIP")
    return OK


def _client_switch(connection: Connection, words: list[bytes]) -> bytes:
    """NO-EVICT and NO-TOUCH: nothing is evicted or touched here, so both are always so."""
    if words[2].lower() not in (b"on", b"off"):
        raise InvalidError("syntax error", hint="on or off")
    return OK


def _client_tracking(connection: Connection, words: list[bytes]) -> bytes:
    if words[2].lower() == b"off":
        return OK
    raise InvalidError("there is no client-side caching here", hint="leave CLIENT TRACKING off")


def _help(command: str) -> Handler:
    def answer(connection: Connection, words: list[bytes]) -> bytes:
        lines: list[Reply] = [
            Simple(f"{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"),
            *(Simple(name) for name in COMMANDS[command].subcommands),
        ]
        return encode(lines, connection.protocol)

    return answer


_MANY = 1 << 20
_CLIENT: dict[bytes, Handler] = {
    b"ID": _client_id,
    b"GETNAME": _client_getname,
    b"SETNAME": _client_setname,
    b"SETINFO": _client_setinfo,
    b"INFO": _client_info,
    b"LIST": _client_list,
    b"KILL": _client_kill,
    b"UNBLOCK": _client_unblock,
    b"REPLY": _client_reply,
    b"NO-EVICT": _client_switch,
    b"NO-TOUCH": _client_switch,
    b"TRACKING": _client_tracking,
    b"HELP": _help("CLIENT"),
}
#: How many words there may be, where it is more than the two names.
_CLIENT_WORDS: dict[bytes, tuple[int, int]] = {
    b"SETNAME": (3, 3),
    b"SETINFO": (4, 4),
    b"LIST": (2, _MANY),
    b"KILL": (3, _MANY),
    b"UNBLOCK": (3, 4),
    b"REPLY": (3, 3),
    b"NO-EVICT": (3, 3),
    b"NO-TOUCH": (3, 3),
    b"TRACKING": (3, _MANY),
}


# ---- COMMAND ----------------------------------------------------------------------------------


def command(connection: Connection, words: list[bytes]) -> bytes:
    protocol = connection.protocol
    names = [word.decode("latin-1").upper() for word in words[2:]]
    match words[1].upper() if len(words) > 1 else b"":
        case b"":
            return encode([_command_info(each) for each in COMMANDS.values()], protocol)
        case b"COUNT" if not names:
            return encode(len(COMMANDS), protocol)
        case b"LIST":
            return encode(_command_names(words), protocol)
        case b"INFO":
            asked = [COMMANDS.get(name) for name in names] if names else list(COMMANDS.values())
            found = [None if each is None else _command_info(each) for each in asked]
            return encode(found, protocol)
        case b"DOCS":
            known = [COMMANDS[name] for name in names or COMMANDS if name in COMMANDS]
            return encode({each.name.lower(): _command_docs(each) for each in known}, protocol)
        case b"GETKEYS" if names:
            return _command_keys(words[2:], protocol)
        case b"HELP":
            return _help("COMMAND")(connection, words)
        case _:
            return unknown_subcommand("COMMAND", words[1])


def _command_names(words: list[bytes]) -> list[Reply]:
    if len(words) == 2:
        return [name.lower() for name in COMMANDS]
    if len(words) == 5 and words[2].upper() == b"FILTERBY":
        if words[3].upper() == b"PATTERN":
            matches = compile_glob(words[4].decode("utf-8", "replace").lower())
            return [name.lower() for name in COMMANDS if matches(name.lower())]
        if words[3].upper() in (b"MODULE", b"ACLCAT"):
            return []
    raise InvalidError("syntax error", hint="COMMAND LIST [FILTERBY PATTERN pattern]")


def _command_info(each: Command) -> list[Reply]:
    first, last, step = each.keys
    return [
        each.name.lower(),
        each.arity,
        [Simple(flag) for flag in each.flags],
        first,
        last,
        step,
        [Simple(f"@{each.group}")],
        [],  # tips
        [],  # key specifications
        [],  # subcommands
    ]


def _command_docs(each: Command) -> dict[str, Reply]:
    arguments: list[Reply] = [
        {"name": piece, "type": "string", "display_text": piece} for piece in each.pieces()
    ]
    docs: dict[str, Reply] = {
        "summary": each.summary,
        "since": each.since,
        "group": each.group,
    }
    return {**docs, "arguments": arguments} if arguments else docs


def _command_keys(words: list[bytes], protocol: int) -> bytes:
    each = COMMANDS.get(words[0].decode("latin-1").upper())
    if each is None:
        return error("ERR", "Invalid command specified")
    each.check_arity(len(words))
    positions = key_positions(each, len(words))
    if not positions:
        return error("ERR", "The command has no key arguments")
    return encode([words[position] for position in positions], protocol)


# ---- CONFIG -----------------------------------------------------------------------------------


def config(connection: Connection, words: list[bytes]) -> bytes:
    match words[1].upper():
        case b"GET" if len(words) > 2:
            given = [text(word, "a pattern").lower() for word in words[2:]]
            check_patterns(*given)
            patterns = [compile_glob(pattern) for pattern in given]
            found: dict[str, Reply] = {
                name: value
                for name, value in _settings(connection.server).items()
                if any(matches(name) for matches in patterns)
            }
            return encode(found, connection.protocol)
        case b"SET":
            raise InvalidError(
                "settings are fixed while the server runs",
                hint="give them to `penstock serve`; a stream's own are set with TCONFIG",
            )
        case b"RESETSTAT":
            return OK
        case b"HELP":
            return _help("CONFIG")(connection, words)
        case _:
            return unknown_subcommand("CONFIG", words[1])


def _settings(server: Server) -> dict[str, str]:
    """What clients and benchmarks ask for, with what is true here."""
    limits = server.limits
    return {
        "appendfsync": "always",
        "appendonly": "yes",
        "databases": "1",
        "maxclients": str(limits.connections),
        "maxmemory": "0",
        "maxmemory-policy": "noeviction",
        "port": str(server.port),
        "proto-max-bulk-len": str(limits.request.bulk_bytes),
        "save": "",
        "tcp-keepalive": "0",
        "timeout": "0",
    }


# ---- the server -------------------------------------------------------------------------------


def time_(connection: Connection, words: list[bytes]) -> bytes:
    seconds, ms = divmod(connection.server.clock.wall_ms(), 1000)
    return encode([str(seconds), str(ms * 1000)], connection.protocol)


HANDLERS: dict[str, Handler] = {
    "AUTH": auth,
    "CLIENT": client,
    "COMMAND": command,
    "CONFIG": config,
    "ECHO": echo,
    "HELLO": hello,
    "INFO": info,
    "PING": ping,
    "QUIT": quit_,
    "RESET": reset,
    "SELECT": select,
    "TIME": time_,
}
