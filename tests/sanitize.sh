#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Builds everything in DIR with -fsanitize=LIST and runs tests there.
#
# Usage: sanitize.sh LIST DIR SOURCE PROGRAMS TESTS
# The copy of the source in san-source, where there is one, is taken in SOURCE's place.
set -eu
list=$1
dir=$2
source=$3
programs=$4
tests=$5

[ ! -d san-source ] || source=$PWD/san-source
mkdir -p "$dir"
cd "$dir"
[ -f Makefile ] || "$source/configure" --enable-sanitizer="$list" CFLAGS='-O1 -g' > configure.log ||
	{ tail -n 20 configure.log >&2; exit 1; }
echo "check-san: $list"

# ThreadSanitizer of gcc 12 knows no address space that is randomised by more than 28 bits.
plain=()
if [ "$list" = thread ] && setarch "$(uname -m)" -R true 2> /dev/null; then
	plain=(setarch "$(uname -m)" -R)
fi
exec "${plain[@]}" "${MAKE:-make}" check check_PROGRAMS="$programs" TESTS="$tests"
