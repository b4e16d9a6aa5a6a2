"""What a runner asks of the broker for its processors, and what it is answered. Data only.

Contract     One request in, one reply out (`Graphs.ask`, `database.graphs.ask`), over RESP as JSON:
             `PENSTOCK.GRAPH {"type": "start", …}`. Each request tells which reply it gets.
A step       Start -> (TakeSnapshot -> [ChooseInput, of an alts] -> run the function -> CommitStep)
             again and again. A processor whose `Started.pending` is set goes on with the function,
             of exactly that range; the snapshot of an alts without a choice with ChooseInput.
             An unhandled failure: NoteFailure, then Start again, which is the recovery.
Fencing      Start raises the epoch. Whatever comes with an older epoch, or with another `tail` than
             the backing queue has, is answered with `Fenced` (a handle raises FencedError) and
             writes nothing. A runner waits for each answer before it asks the next thing.
Repetition   Every request may be sent again after a lost answer: it is answered as the first time.
             (Drop and Rename are NotFoundError by then: whoever sends them again knows that, and
             answers for them, client/graphs.py.)
Semantics    exactly_once   as above.
             at_least_once  TakeSnapshot and ChooseInput write nothing; CommitStep names the ranges.
             at_most_once   TakeSnapshot moves the positions too (of at most AT_MOST_ONCE_MAX
                            messages); what is under way in a crash is not done again.
Sources      have no inputs and take no snapshot: CommitStep alone, with their new position.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec

from penstock.errors import InvalidError

R = TypeVar("R")

Kind = Literal["source", "pipe", "join", "alts", "fork", "sink"]
Semantics = Literal["exactly_once", "at_least_once", "at_most_once"]
OnEvicted = Literal["stop", "skip"]

#: What a crash can lose of an at_most_once processor: one step.
AT_MOST_ONCE_MAX = 1000


class Input(msgspec.Struct, frozen=True):
    alias: str  # of a join: the name of the argument; else the name of the stream
    stream: str


class Topology(msgspec.Struct, frozen=True):
    """A processor as its graph declares it."""

    graph: str
    processor: str
    kind: Kind
    inputs: list[Input]
    outputs: list[str]
    errors: str | None = None
    semantics: Semantics = "exactly_once"
    on_evicted: OnEvicted = "stop"

    @property
    def id(self) -> str:
        """What messages are hashed with."""
        return f"{self.graph}/{self.processor}"


class Range(msgspec.Struct, frozen=True):
    """Of one input: start <= offset < end."""

    alias: str
    start: int
    end: int


class Pending(msgspec.Struct, frozen=True):
    """A step that was begun and is not delivered: it is done again, as it was."""

    #: What its messages are hashed with: the id that the processor had when the step was begun.
    processor_id: str
    ranges: list[Range]  # of all inputs; of an alts only the chosen one is not empty
    step_hash: bytes
    chosen: str | None = None  # alias, of an alts; None: the choice was not made yet


class Tailer(msgspec.Struct, frozen=True):
    alias: str
    stream: str
    stream_id: int  # what messages are hashed with
    position: int  # the next offset to read
    first: int  # of the stream, now
    next: int
    stored_bytes: int = 0  # of all its entries

    @property
    def available(self) -> int:
        return max(0, self.next - self.position)

    @property
    def mean_bytes(self) -> float:
        """What an entry takes."""
        return self.stored_bytes / max(1, self.next - self.first)


# ---- replies -----------------------------------------------------------------------------------


class Fenced(msgspec.Struct, frozen=True, tag="fenced"):
    """Another runner has taken the processor over; `text` says which and how it is known."""

    text: str


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    fresh: list[str]  # processors that never ran


class Started(msgspec.Struct, frozen=True, tag="started"):
    processor: int  # names it in every later request; never used for another one
    #: Never used for another one, in any location: what is remembered outside of how far it came
    #: (the application transaction of a Delta table) is remembered under this.
    uid: str
    epoch: int
    tail: int
    step: int  # dense; of the pending step, or of the next one
    tailers: list[Tailer]
    pending: Pending | None = None
    #: Attempts at the pending range, the one that begins now included: from 3 on it is narrowed.
    tries: int = 0
    last_chosen: str | None = None  # alias, of an alts: round robin goes on behind it
    position: bytes | None = None  # of a source


class Looked(msgspec.Struct, frozen=True, tag="looked"):
    tailers: list[Tailer]
    skipped: int = 0  # moved over since the last look, because it was evicted


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    tail: int
    step: int
    step_hash: bytes
    ranges: list[Range]


class Written(msgspec.Struct, frozen=True):
    """Where entries went: first <= offset < end."""

    stream: str
    first: int
    end: int


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    tail: int
    step: int  # the next one
    outputs: list[Written]
    errors: Written | None
    tailers: list[Tailer]


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    pass


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    pass


class ProcessorStatus(msgspec.Struct, frozen=True):
    graph: str
    processor: str
    kind: Kind
    semantics: Semantics
    tailers: list[Tailer]  # `available` of each is its lag
    outputs: list[str]
    errors: str | None
    epoch: int  # how often it was started
    step: int
    pending: bool
    tries: int
    #: Messages so far: read, and what became of them.
    delivered: int
    written: int
    failed: int  # error entries
    nil: int
    skipped: int
    lost: int  # of at_most_once, by crashes
    failure: str | None  # why the last attempt failed; None after a commit
    failed_ms: int | None
    retry_ms: int | None  # the time at which it is tried again
    started_ms: int
    committed_ms: int | None
    seen_ms: int | None  # when its runner last asked something, of the broker that serves now
    reset: bool  # waits for a Start that brings the new inputs
    position: bytes | None = None  # of a source
    on_evicted: OnEvicted = "stop"


class GraphStatus(msgspec.Struct, frozen=True):
    graph: str
    processors: list[ProcessorStatus]


class Graphs(msgspec.Struct, frozen=True, tag="graphs"):
    graphs: list[GraphStatus]


Reply = Fenced | Opened | Started | Looked | Taken | Committed | Noted | Changed | Graphs


# ---- requests ----------------------------------------------------------------------------------


class Asks(msgspec.Struct, Generic[R], frozen=True, forbid_unknown_fields=True):
    """A request; R is what answers it, unless the runner was fenced."""


class OpenGraph(Asks[Opened], frozen=True, tag="open"):
    """Before the first Start: whether what is stored fits. Writes nothing. -> Opened

    ConflictError for a stored processor that the graph has no more (drop or rename it), and for
    one whose kind or inputs changed (reset it).
    """

    graph: str
    processors: list[Topology]


class Start(Asks[Started], frozen=True, tag="start"):
    """Take the processor over from whoever ran it, and recover. -> Started

    A runner that starts again names the processor that it had: ConflictError where that was dropped
    or renamed meanwhile. Another one of its name would begin anew, and nobody asked for that.
    """

    topology: Topology
    known: int | None = None


class Look(Asks[Looked], frozen=True, tag="look"):
    """Where the inputs are; waits up to `block_ms` until there is something to do. -> Looked

    With on_evicted="skip" this is what moves positions over what is gone.
    """

    processor: int
    epoch: int
    block_ms: int = 0


class TakeSnapshot(Asks[Taken], frozen=True, tag="snapshot"):
    """Steps 1 to 3: `ranges` of all inputs, beginning at their positions. -> Taken

    Of a join all of one length; of an alts all empty (the starts).
    """

    processor: int
    epoch: int
    tail: int
    ranges: list[Range]


class ChooseInput(Asks[Taken], frozen=True, tag="choose"):
    """Step 4a, of an alts. -> Taken"""

    processor: int
    epoch: int
    tail: int
    chosen: str  # alias
    end: int


class NarrowStep(Asks[Taken], frozen=True, tag="narrow"):
    """The pending step with the same starts and `count` messages at most. -> Taken

    For a range that keeps failing. The number of the step stays: a sink that remembers outside how
    far it wrote does so by offsets.
    """

    processor: int
    epoch: int
    tail: int
    count: int


class Output(msgspec.Struct, frozen=True):
    """Entries for one stream, in order, each with its hash as meta: `nodes` where there are few
    (outputs.py packs them), or the writers that staged them (CommitStep.staging)."""

    stream: str
    nodes: list[bytes] = []
    writers: list[int] = []


class CommitStep(Asks[Committed], frozen=True, tag="commit"):
    """Steps 7 and 8: outputs, errors, attempt and positions, all in one commit. -> Committed"""

    processor: int
    epoch: int
    tail: int
    ranges: list[Range]  # as in the snapshot, with the choice of an alts
    step_hash: bytes  # of Taken or Pending; of a source: b""
    outputs: list[Output] = []
    errors: Output | None = None
    nil: int = 0  # messages without output and error entry
    staging: int | None = None
    #: Of a source: outputs.encode_position; None leaves it as it is.
    position: bytes | None = None
    #: How many messages of the ranges were gone already (on_evicted="skip", compaction).
    skipped: int = 0


class NoteFailure(Asks[Noted], frozen=True, tag="failure"):
    """Why an attempt failed, for those who ask for the status. -> Noted"""

    processor: int
    epoch: int
    text: str
    retry_ms: int | None = None  # when it is tried again: from now


class ShowGraphs(Asks[Graphs], frozen=True, tag="status"):
    """Of one graph (NotFoundError where there is none) or all. -> Graphs"""

    graph: str | None = None


class DropProcessor(Asks[Changed], frozen=True, tag="drop"):
    """Forget it: positions, pending step, holds. -> Changed"""

    graph: str
    processor: str


class RenameProcessor(Asks[Changed], frozen=True, tag="rename"):
    """It goes on under another name, where it stands. -> Changed"""

    graph: str
    processor: str
    to: str


class ResetProcessor(Asks[Changed], frozen=True, tag="reset"):
    """The next Start may bring another kind and other inputs. -> Changed

    A pending step is given up: its messages are read again. `start`: inputs that stay keep their
    position, or all begin at the first entry, or behind the last one. Inputs that are new begin at
    the first entry (with "new": behind the last one). A source keeps its position, or forgets it.
    """

    graph: str
    processor: str
    start: Literal["keep", "first", "new"] = "keep"


Request = (
    OpenGraph | Start | Look | TakeSnapshot | ChooseInput | NarrowStep | CommitStep | NoteFailure
    | ShowGraphs | DropProcessor | RenameProcessor | ResetProcessor
)  # fmt: skip


def encode_request(request: Request) -> bytes:
    try:
        return msgspec.json.encode(request)
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidError(f"a graph request is told in JSON: {error}") from None


def encode_reply(reply: Reply) -> bytes:
    return msgspec.json.encode(reply)


_REQUEST = msgspec.json.Decoder(Request)
_REPLY = msgspec.json.Decoder(Reply)


def decode_request(data: bytes) -> Request:
    try:
        request: Request = _REQUEST.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"a graph request is told in JSON: {error}") from None
    return request


def decode_reply(data: bytes) -> Reply:
    reply: Reply = _REPLY.decode(data)
    return reply
