"""INFO: what the server tells about itself, in Redis' sections and words.

Contract     A section is a function that gives its rows, called only when it is asked for. What
             clients and exporters of Redis look for is there, with what is true here; our own rows
             stand beside it.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING

from penstock.broker.progress import progress_row
from penstock.codec.resp import bulk

if TYPE_CHECKING:
    from penstock.server.resp.connection import Connection
    from penstock.server.serve import Server

#: The version of Redis whose manners these are; clients choose features by it.
REDIS_VERSION = "7.4.0"

Rows = dict[str, str | int]


def info(connection: Connection, words: list[bytes]) -> bytes:
    asked = {word.decode("latin-1").lower() for word in words[1:]}
    everything = not asked or asked & {"all", "default", "everything"}
    sections = [
        f"# {name.capitalize()}\r\n"
        + "".join(f"{key}:{value}\r\n" for key, value in rows().items())
        for name, rows in _sections(connection.server).items()
        if everything or name in asked
    ]
    # RESP3 clients take a bulk as well; redis-py parses it the same.
    return bulk("\r\n".join(sections).encode())


def _sections(server: Server) -> dict[str, Callable[[], Rows]]:
    broker, counts, limits = server.broker, server.counts, server.limits
    health = broker.committer.health

    def about_server() -> Rows:
        seconds = int(server.clock.monotonic() - server.started)
        return {
            "redis_version": REDIS_VERSION,
            "redis_mode": "standalone",
            "penstock_version": version("penstock"),
            "os": f"{platform.system()} {platform.release()} {platform.machine()}",
            "arch_bits": 64,
            "process_id": os.getpid(),
            "run_id": server.run_id,
            "tcp_port": server.port,
            "server_time_usec": server.clock.wall_ms() * 1000,
            "uptime_in_seconds": seconds,
            "uptime_in_days": seconds // 86400,
        }

    def about_clients() -> Rows:
        return {
            "connected_clients": server.connections,
            "blocked_clients": counts.blocked,
            "maxclients": limits.connections,
        }

    def about_memory() -> Rows:
        rss = _resident_bytes()
        return {
            "used_memory": rss,
            "used_memory_rss": rss,
            "used_memory_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "maxmemory": 0,
            "maxmemory_policy": "noeviction",
        }

    def about_persistence() -> Rows:
        return {
            "loading": 0,
            "aof_enabled": 1,
            "rdb_changes_since_last_save": 0,
            "rdb_bgsave_in_progress": 0,
            "aof_last_write_status": "ok",
            "epoch": broker.epoch,
            "last_commit": broker.committer.applied_n,
            "commits": health.commits,
            "commits_refused": health.refused,
            "commits_unknown": health.unknown_outcomes,
            "reopened": health.reopened,
        }

    def about_stats() -> Rows:
        return {
            "total_connections_received": counts.connections,
            "total_commands_processed": counts.commands,
            "rejected_connections": counts.rejected,
            "client_output_buffer_limit_disconnections": counts.cut_unread,
            "client_query_buffer_limit_disconnections": counts.cut_waiting + counts.cut_unfinished,
            "protocol_errors": counts.protocol_errors,
            "internal_errors": counts.internal_errors,
        }

    def about_replication() -> Rows:
        return {"role": "master", "connected_slaves": 0, "master_repl_offset": 0}

    def about_spark() -> Rows:
        told = enumerate(broker.bulk.told())
        return {f"{progress.kind}_{i}": progress_row(progress) for i, progress in told}

    return {
        "server": about_server,
        "clients": about_clients,
        "memory": about_memory,
        "persistence": about_persistence,
        "stats": about_stats,
        "replication": about_replication,
        "spark": about_spark,
        # Counting the streams takes a scan: DBSIZE does that.
        "keyspace": dict,
    }


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
