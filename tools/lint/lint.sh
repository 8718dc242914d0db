#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Every check of the source that runs nothing. Prints one line a check; fails when one fails or its tool is missing.
#
# Usage: lint.sh [CHECK...]      (layers headers device format tidy cppcheck shell; all by default)
set -u
top=${top_srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
export top_srcdir=$top
cd "$top" || exit 1

# The formatting of clang-format differs from version to version; this one is the measure.
format_version=14
includes=(-std=gnu11 -D_GNU_SOURCE= -Isrc -I. "-DREPLAY_CORPUS=__FILE__")

sources()
{
	find src proto tools tests -name '*.c' | sort
}

headers()
{
	find src proto tools tests -name '*.h' | sort
}

scripts()
{
	{
		find tools tests .ci -name '*.sh'
		grep -rlE '^#!/bin/(ba)?sh' tools tests .ci autogen.sh
	} | sort -u
}

need()
{
	command -v "$1" > /dev/null || { echo "$1 is not installed (tools/setup lint)"; return 1; }
}

check_layers()
{
	need python3 && python3 tools/lint/layers.py
}

check_headers()
{
	tools/lint/headers.sh
}

check_device()
{
	tools/lint/device_headers.sh
}

check_format()
{
	need clang-format || return 1
	if ! clang-format --version | grep -q "version $format_version\."; then
		echo "clang-format is not version $format_version"
		return 77
	fi
	{ sources; headers; } | xargs clang-format --dry-run --Werror
}

check_tidy()
{
	need clang-tidy || return 1
	sources | xargs -P "$(nproc)" -n 4 sh -c 'clang-tidy --quiet "$@" -- '"${includes[*]}"' 2>/dev/null' sh
}

check_cppcheck()
{
	need cppcheck || return 1
	cppcheck --quiet --error-exitcode=1 --inline-suppr --enable=warning,portability --std=c11 \
		--suppressions-list=tools/lint/cppcheck.supp -j "$(nproc)" -Isrc -I. src proto tools
}

check_shell()
{
	need shellcheck && scripts | xargs shellcheck
}

failed=0
run_check()
{
	case $1 in
	layers) check_layers ;;
	headers) check_headers ;;
	device) check_device ;;
	format) check_format ;;
	tidy) check_tidy ;;
	cppcheck) check_cppcheck ;;
	shell) check_shell ;;
	*) echo "no such check"; return 1 ;;
	esac
}

[ $# -gt 0 ] || set -- layers headers device format tidy cppcheck shell
for check in "$@"; do
	output=$(run_check "$check" 2>&1)
	case $? in
	0) echo "lint $check: ok" ;;
	77) echo "lint $check: skipped: $output" ;;
	*)
		echo "lint $check: FAILED"
		echo "$output"
		failed=1
		;;
	esac
done
exit "$failed"
