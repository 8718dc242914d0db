#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Writes the files that come from tables below FOLDER (the source tree, or a place to compare with), by the programs that
# were built from these tables.
#
# Usage: generate.sh FOLDER     ($top_builddir: where the programs stand)
set -eu
folder=$1
: "${top_builddir:?is set by make}"

# write FILE PROGRAM ARGUMENT...: what the program prints; a file with the right content keeps its time.
write()
{
	local file=$folder/$1
	shift
	mkdir -p "$(dirname "$file")"
	"$top_builddir/$1" "${@:2}" > "$file.new"
	if cmp -s "$file.new" "$file"; then
		rm "$file.new"
	else
		mv "$file.new" "$file"
	fi
}

write man/halcyon-bench.1 halcyon-bench --help-man
write man/halcyonctl.1 halcyonctl --help-man
write man/halcyond.8 halcyon-gen man8
write man/halcyond.conf.5 halcyon-gen man5
write man/halcyon-stats.7 halcyon-gen man7
write conf/halcyond.conf.example halcyon-gen example
