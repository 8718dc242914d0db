#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Plays the wire transcripts against the installed memcached: they must say what it does."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import play                             # noqa: E402

if __name__ == "__main__":
    sys.argv.insert(1, "--oracle")
    sys.exit(play.main())
