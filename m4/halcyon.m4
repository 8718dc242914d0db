dnl SPDX-License-Identifier: BSD-2-Clause

dnl HALCYON_WARNINGS(flags): adds to HALCYON_CFLAGS those that the compiler knows.
AC_DEFUN([HALCYON_WARNINGS], [
	for halcyon_flag in $1; do
		AC_MSG_CHECKING([whether $CC takes $halcyon_flag])
		halcyon_saved=$CFLAGS
		CFLAGS="$CFLAGS $halcyon_flag -Werror"
		AC_COMPILE_IFELSE([AC_LANG_PROGRAM()],
			[AC_MSG_RESULT([yes]); HALCYON_CFLAGS="$HALCYON_CFLAGS $halcyon_flag"],
			[AC_MSG_RESULT([no])])
		CFLAGS=$halcyon_saved
	done
])

dnl HALCYON_SANITIZER(list): compiles and links everything with -fsanitize=list; a finding ends the process.
AC_DEFUN([HALCYON_SANITIZER], [
	halcyon_flag="-fsanitize=$1 -fno-sanitize-recover=all -fno-omit-frame-pointer"
	AC_MSG_CHECKING([whether $CC links with -fsanitize=$1])
	halcyon_saved=$CFLAGS
	CFLAGS="$CFLAGS $halcyon_flag"
	AC_LINK_IFELSE([AC_LANG_PROGRAM()], [AC_MSG_RESULT([yes])],
		[AC_MSG_RESULT([no]); AC_MSG_ERROR([--enable-sanitizer=$1 does not work with $CC])])
	CFLAGS=$halcyon_saved
	HALCYON_CFLAGS="$HALCYON_CFLAGS $halcyon_flag"
	HALCYON_LDFLAGS="$HALCYON_LDFLAGS $halcyon_flag"
])

dnl HALCYON_FUZZER: instruments every object; only the fuzzers link libFuzzer's main.
AC_DEFUN([HALCYON_FUZZER], [
	AC_MSG_CHECKING([whether $CC has libFuzzer])
	halcyon_saved=$CFLAGS
	CFLAGS="$CFLAGS -fsanitize=fuzzer-no-link"
	AC_LINK_IFELSE([AC_LANG_PROGRAM()], [AC_MSG_RESULT([yes])],
		[AC_MSG_RESULT([no]); AC_MSG_ERROR([--enable-fuzz needs clang: configure with CC=clang])])
	CFLAGS=$halcyon_saved
	HALCYON_CFLAGS="$HALCYON_CFLAGS -fsanitize=fuzzer-no-link"
	HALCYON_LDFLAGS="$HALCYON_LDFLAGS -fsanitize=fuzzer-no-link"
])

dnl HALCYON_NVCC: sets NVCC from $with_cuda (check, yes, no or a folder).
AC_DEFUN([HALCYON_NVCC], [
	NVCC=
	AS_CASE([$with_cuda],
		[no], [],
		[yes | check], [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:/usr/local/cuda/bin])],
		[AC_PATH_PROG([NVCC], [nvcc], [], [$with_cuda/bin])])
	AS_IF([test -z "$NVCC" && test "$with_cuda" != no && test "$with_cuda" != check],
		[AC_MSG_ERROR([--with-cuda: nvcc was not found])])
	AC_SUBST([NVCC])
])

dnl HALCYON_LATER(name, what): an optional part that this version does not have. Asking for it is an error, so that
dnl nobody believes to have it.
AC_DEFUN([HALCYON_LATER], [
	AC_ARG_WITH([$1],
		[AS_HELP_STRING([--with-$1], [$2: not part of this version])],
		[], [with_$1=no])
	AS_IF([test "$with_$1" != no],
		[AC_MSG_ERROR([--with-$1: $2 is not part of this version])])
	with_$1="not part of this version"
])
