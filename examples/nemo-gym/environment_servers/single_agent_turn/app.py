"""turn as a server that NeMo Gym starts: this process becomes `turn serve --gym-env`."""

import os
import shutil
import sys

program = os.environ.get("TURN_PROGRAM") or shutil.which("turn")
if program is None:
    sys.exit("turn is not on the PATH: put it there, or set TURN_PROGRAM to where it is")

# NeMo Gym waits a second for its servers to end before it kills them. Episodes under way
# are cancelled at once, so that their sessions are closed within that second.
os.environ.setdefault("TURN_GRACE", "0s")

try:
    os.execv(program, ["turn", "serve", "--gym-env", *sys.argv[1:]])
except OSError as error:
    sys.exit(f"cannot start turn: {program}: {error.strerror}")
