#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Makes ./configure. Needs autoconf, automake and pkg-config.
set -e
cd "$(dirname "$0")"
exec autoreconf --install --warnings=all
