#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Compiles every *_hd.h header alone as device code, with warnings as errors. Without nvcc: 77 (skipped).
set -u
top=${top_srcdir:-$(dirname "$0")/../..}
nvcc=${NVCC:-$(command -v nvcc)}
if [ -z "$nvcc" ]; then
	echo "no nvcc: device headers not compiled"
	exit 77
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

failed=0
count=0
while IFS= read -r header; do
	count=$((count + 1))
	printf '#include "%s"\n__global__ void probe(void) {}\n' "$header" > "$work/probe.cu"
	if ! "$nvcc" -Werror all-warnings -diag-suppress 177 -I"$top/src" -I"$top" -ptx -o "$work/probe.ptx" \
		"$work/probe.cu" > "$work/log" 2>&1; then
		echo "FAILED $header"
		cat "$work/log"
		failed=$((failed + 1))
	fi
done < <(cd "$top" && find src proto gpu -name '*_hd.h' | sed 's,^src/,,' | sort)
echo "device headers: $count compiled, $failed failed"
[ "$failed" -eq 0 ]
