#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# The systemd units as they are installed: systemd accepts every line of them, and the hardening holds.
set -u
: "${top_srcdir:?is set by make check-system}" "${top_builddir:?is set by make check-system}"
passed=0
failed=0

finish()
{
	echo "$passed passed, $failed failed, ${1:-0} skipped"
	[ "$failed" -eq 0 ]
	exit
}

# result NAME CODE: counts a check.
result()
{
	if [ "$2" -eq 0 ]; then
		passed=$((passed + 1))
		echo "ok: $1"
	else
		failed=$((failed + 1))
		echo "FAILED: $1"
	fi
}

if ! command -v systemd-analyze > /dev/null; then
	echo "systemd-analyze is not installed"
	finish 1
fi

root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
make -s -C "$top_builddir" install DESTDIR="$root" > "$root/install.log" 2>&1
code=$?
result "make install into a folder" $code
[ $code -eq 0 ] || { cat "$root/install.log"; finish; }

units=$(dirname "$(find "$root" -name halcyond.service)")
for unit in halcyond.service halcyond@.service halcyond.socket; do
	[ -f "$units/$unit" ]
	result "$unit is installed" $?
	! grep -nE '@[a-z]+@|^[A-Za-z]+=.*[[:space:]]#' "$units/$unit"
	result "$unit has no placeholder and no end-of-line comment" $?
done

# The command of the unit, with its configuration file.
confs=$(dirname "$(find "$root" -name halcyond.conf)")
"$(find "$root" -name halcyond -type f)" --config "$confs/halcyond.conf" --check-config -u nobody
result "the installed configuration is accepted" $?
echo "port = nowhere" > "$confs/halcyond.conf"
! "$(find "$root" -name halcyond -type f)" --config "$confs/halcyond.conf" --check-config -u nobody 2> "$root/check.log" &&
	grep -q port "$root/check.log"
result "--check-config refuses a wrong one" $?
make -s -C "$top_builddir" install DESTDIR="$root" >> "$root/install.log" 2>&1
grep -q nowhere "$confs/halcyond.conf"
result "make install leaves a configuration alone" $?

# verify looks for the programs of ExecStart: name those of the installation.
work=$root/verify
mkdir "$work"
for unit in halcyond.service halcyond@.service halcyond.socket; do
	sed "s,^ExecStart=,&$root," "$units/$unit" > "$work/$unit"
done
# A template is verified as an instance of it.
for unit in halcyond.service halcyond@one.service halcyond.socket; do
	cp -n "$work/halcyond@.service" "$work/halcyond@one.service"
	output=$(SYSTEMD_UNIT_PATH="$work:" systemd-analyze verify --man=no "$work/$unit" 2>&1)
	code=$?
	# Warnings leave the exit code at 0; those that name our files count.
	if [ $code -eq 0 ] && grep -q 'halcyond' <<< "$output"; then
		code=1
	fi
	[ $code -eq 0 ] || echo "$output"
	result "systemd-analyze verify $unit" $code
done

# 'exposure' goes from 0 (nothing may be done) to 100.
output=$(systemd-analyze security --offline=yes --threshold=20 "$work/halcyond.service" 2>&1)
code=$?
[ $code -eq 0 ] || tail -n 3 <<< "$output"
result "systemd-analyze security: exposure at most 2.0" $code
finish
