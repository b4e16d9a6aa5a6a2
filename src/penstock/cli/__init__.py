"""The command `penstock`: one file per command group; what a command measures stands beside it."""
