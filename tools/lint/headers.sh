#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Compiles every header of src and proto alone: a header includes what it needs.
set -u
top=${top_srcdir:-$(dirname "$0")/../..}
cc=${CC:-gcc}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

failed=0
count=0
while IFS= read -r header; do
	count=$((count + 1))
	printf '#include "%s"\n#include "%s"\nint probe;\n' "$header" "$header" > "$work/probe.c"
	# CPPFLAGS is a list of flags.
	# shellcheck disable=SC2086
	if ! $cc -std=gnu11 -Wall -Wextra -Wshadow -Wvla -Werror -D_GNU_SOURCE= -I"$top/src" -I"$top" ${CPPFLAGS:-} \
		-fsyntax-only "$work/probe.c" > "$work/log" 2>&1; then
		echo "FAILED $header"
		cat "$work/log"
		failed=$((failed + 1))
	fi
done < <(cd "$top" && find src proto -name '*.h' | sed 's,^src/,,' | sort)
echo "headers: $count compiled alone, $failed failed"
[ "$failed" -eq 0 ]
