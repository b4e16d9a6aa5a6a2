"""A child that writes and ends without closing anything.

python -m integration.forgetful_script LOCATION COUNT
"""

from __future__ import annotations

import sys

import penstock

stream = penstock.open(sys.argv[1]).stream("mixed")
for number in range(int(sys.argv[2])):
    stream.write(f"entry {number}".encode())
