#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# The files that come from tables are up to date ('make generate' writes them).
set -eu
: "${top_srcdir:?is set by make check}" "${top_builddir:?is set by make check}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

bash "$top_srcdir/tools/gen/generate.sh" "$work"
failed=0
while IFS= read -r file; do
	if ! diff -u "$top_srcdir/$file" "$work/$file"; then
		echo "$file is out of date: run 'make generate'"
		failed=1
	fi
done < <(cd "$work" && find . -type f | sed 's,^\./,,' | sort)
exit "$failed"
