"""The command `penstock`, from the first moment on: Ctrl-C ends it without a word.

Why          Importing anything of the package imports all of it, which takes most of a second.
             Python's answer to a Ctrl-C in that time is a traceback. So until the command line is
             there to answer, the signal itself ends the process: nothing has begun yet. Shells tell
             that as 130, too. A signal that is ignored (`nohup`, a job in the background) stays so.
Beside       and not in the package, because then its import would come first.
"""

import signal


def main() -> None:  # it does not return; the word for that would be another import
    answer = signal.getsignal(signal.SIGINT)
    if answer is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli.main import main as command_line

    signal.signal(signal.SIGINT, answer)
    command_line()
