"""`python -m sonde` is the command `sonde`."""

from __future__ import annotations

import os
import sys

from .cli.main import main

if __name__ == "__main__":
    code = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # Everything is written and closed by now.  A worker of torchrun that leaves through the destructors of torch's
        # communication threads is now and then aborted there, and torchrun would call a finished run failed.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
