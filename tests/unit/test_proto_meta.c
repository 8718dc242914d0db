/* SPDX-License-Identifier: BSD-2-Clause */
/* Meta commands: flags to requests, and base64 keys. */
#include "tests/lib/proto_table.h"

#include "proto/base64.h"

static void
test_get(void **state)
{
	static const struct table_row rows[] = {
		ROW("mn\r\nmn foo\r\nmn\n", "NOOP\nNOOP\nNOOP\n"),
		ROW("mg m2\r\n", "FETCH key=m2\n"),
		ROW("mg m2 v q k O77\r\n", "FETCH key=m2 arguments= v q k O77 +value +quiet\n"),
		ROW("mg a h l t u c f s\r\n",
			"FETCH key=a arguments= h l t u c f s +no-bump +cas +was\n"),
		ROW("mg a N30 R60 T-1 E5 C7\r\n", "FETCH key=a exptime=-1 vivify=30 recache=60 "
						  "compare=7 new=5 arguments= N30 R60 T-1 E5 C7"
						  " +ttl +vivify +recache +cas-compare +cas-new\n"),
		ROW("mg   a   v  \r\n", "FETCH key=a arguments=   v   +value\n"),
		ROW("mg a P1 L2\r\n", "FETCH key=a arguments= P1 L2\n"),
		ROW("mg m26 v v\r\n", "REFUSE DUPLICATE_FLAG\n"),
		ROW("mg foo m o o o o o o o o o\r\n", "REFUSE BAD_FLAG\n"),
		ROW("mg foo \x80\r\n", "REFUSE BAD_FLAG\n"),
		ROW("mg a Nx\r\nmg a N\r\nmg a T1.5\r\nmg a R\r\nmg a C-1\r\nmg a E\r\n",
			"REFUSE BAD_TOKEN\nREFUSE BAD_TOKEN\nREFUSE BAD_TOKEN\nREFUSE "
			"BAD_TOKEN\nREFUSE BAD_TOKEN\nREFUSE BAD_TOKEN\n"),
		ROW("mg a O1234567890123456789012345678901\r\n",
			"FETCH key=a arguments= O1234567890123456789012345678901\n"),
		ROW("mg m25 v O12345678901234567890123456789012\r\nmn\r\n",
			"REFUSE OPAQUE_TOO_LONG\nNOOP\n"),
		ROW("mg " K250 " v\r\n", "FETCH key=" K250 " arguments= v +value\n"),
		ROW("mg " K251 " v\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("mg\r\nms\r\nmd\r\nma\r\nme\r\nmg  \r\n",
			"REFUSE BAD_FORMAT\nREFUSE BAD_FORMAT\nREFUSE BAD_FORMAT\nREFUSE "
			"BAD_FORMAT\nREFUSE BAD_FORMAT\n"
			"REFUSE BAD_FORMAT\n"),
		ROW("mx a\r\nm\r\nmgg a\r\n",
			"REFUSE UNKNOWN_COMMAND\nREFUSE BAD_FORMAT\nREFUSE UNKNOWN_COMMAND\n"),
		ROW("mg a b c d e f g h i j k l m n o p q r s t u v w x y z\r\n",
			"REFUSE BAD_FLAG\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

static void
test_set(void **state)
{
	static const struct table_row rows[] = {
		ROW("ms m5 2 q ME\r\nhi\r\n",
			"STORE add key=m5 arguments= q ME value=hi +quiet +mode-given\n"),
		ROW("ms a 2 MA N60\r\nhi\r\nms a 2 MP\r\nhi\r\nms a 2 MR\r\nhi\r\nms a 2 "
		    "MS\r\nhi\r\n",
			"STORE append key=a vivify=60 arguments= MA N60 value=hi +vivify "
			"+mode-given\n"
			"STORE prepend key=a arguments= MP value=hi +mode-given\n"
			"STORE replace key=a arguments= MR value=hi +mode-given\n"
			"STORE set key=a arguments= MS value=hi +mode-given\n"),
		/* N is for append and prepend, I for C, and C is not for add. */
		ROW("ms a 2 N60 I\r\nhi\r\nms a 2 ME C5 I\r\nhi\r\nms a 2 C5 I\r\nhi\r\n",
			"STORE set key=a arguments= N60 I value=hi\n"
			"STORE add key=a arguments= ME C5 I value=hi +mode-given\n"
			"STORE set key=a compare=5 arguments= C5 I value=hi +cas-compare "
			"+invalidate\n"),
		ROW("ms a 2 T30 F5 E9 c k s Oq\r\nhi\r\n",
			"STORE set key=a flags=5 exptime=30 new=9 arguments= T30 F5 E9 c k s Oq "
			"value=hi +ttl +cas-new +cas\n"),
		ROW("ms m6 S2\r\nhi\r\nmn\r\n",
			"REFUSE BAD_FORMAT\nREFUSE UNKNOWN_COMMAND\nNOOP\n"),
		ROW("ms m8 -1\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("ms m8\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("ms m9 2\r\nhiX\r\nmn\r\n", "REFUSE BAD_CHUNK\nREFUSE BAD_FORMAT\nNOOP\n"),
		ROW("ms m11 2 Tabc\r\nhi\r\nmn\r\n", "REFUSE BAD_TOKEN\nNOOP\n"),
		ROW("ms a 2 F4294967296\r\nhi\r\nms a 2 F-1\r\nhi\r\nmn\r\n",
			"REFUSE BAD_FORMAT\nREFUSE BAD_FORMAT\nNOOP\n"),
		ROW("ms m19 2 MX\r\nhi\r\nms m19 2 M\r\nhi\r\nmn\r\n",
			"REFUSE BAD_MODE_SET\nREFUSE BAD_MODE_SET\nNOOP\n"),
		ROW("ms a 2 S100\r\nhi\r\nmn\r\n", "REFUSE BAD_FLAG\nNOOP\n"),
		ROW("ms a 2 O1 c f h k l q s t u v x I P L b\r\nhi\r\nmn\r\n",
			"REFUSE BAD_KEY_ENCODING\nNOOP\n"),
		ROW("ms a 2 O1 c f h k l q s t u v x I P L F1 C1 E1\r\nhi\r\nmn\r\n",
			"REFUSE FLAGS_TOO_LONG\nNOOP\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

static void
test_delete_arithmetic_inspect(void **state)
{
	static const struct table_row rows[] = {
		ROW("md a\r\nmd a q I T30 x C1 E2\r\n",
			"DELETE key=a\nDELETE key=a exptime=30 compare=1 new=2 arguments= q I T30 "
			"x C1 E2"
			" +ttl +cas-compare +cas-new +invalidate +remove-value +quiet\n"),
		ROW("ma m20\r\nma m20 N0 J13 v\r\nma m20 MD D9000 v\r\nma m20 MI D5 v t c\r\nma a "
		    "M+\r\nma a M-\r\n",
			"ARITHMETIC increment key=m20 delta=1\n"
			"ARITHMETIC increment key=m20 vivify=0 delta=1 initial=13 arguments= N0 "
			"J13 v +vivify +value\n"
			"ARITHMETIC decrement key=m20 delta=9000 arguments= MD D9000 v +value "
			"+mode-given\n"
			"ARITHMETIC increment key=m20 delta=5 arguments= MI D5 v t c +value +cas "
			"+was +mode-given\n"
			"ARITHMETIC increment key=a delta=1 arguments= M+ +mode-given\n"
			"ARITHMETIC decrement key=a delta=1 arguments= M- +mode-given\n"),
		ROW("ma a MX\r\nma a x x\r\nma a Dabc\r\nma a N0 Jx\r\nma a ~\r\n",
			"REFUSE BAD_MODE_ARITHMETIC\nREFUSE BAD_ARITHMETIC_FLAG\nREFUSE "
			"BAD_ARITHMETIC_FLAG\n"
			"REFUSE BAD_ARITHMETIC_FLAG\nREFUSE BAD_ARITHMETIC_FLAG\n"),
		ROW("me a\r\nme Zm9v b\r\n", "INSPECT key=a +no-bump\nINSPECT key=foo arguments= b "
					     "+no-bump +binary-key +b\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

#define B64_16 "eHh4eHh4eHh4eHh4"
#define B64_240                                                                                    \
	B64_16 B64_16 B64_16 B64_16 B64_16 B64_16 B64_16 B64_16 B64_16 B64_16 B64_16 B64_16 B64_16 \
		B64_16 B64_16
#define X12 "xxxxxxxxxxxx"
#define X180 X12 X12 X12 X12 X12 X12 X12 X12 X12 X12 X12 X12 X12 X12 X12

static void
test_base64_keys(void **state)
{
	static const struct table_row rows[] = {
		ROW("ms YmluACBrZXk= 2 b\r\nhi\r\nmg YmluACBrZXk= b k v\r\nmg YmluACBrZXk= v\r\n",
			"STORE set key=bin\\x00 key arguments= b value=hi +binary-key +b\n"
			"FETCH key=bin\\x00 key arguments= b k v +binary-key +value +b\n"
			"FETCH key=YmluACBrZXk= arguments= v +value\n"),
		ROW("ms " B64_240 B64_16 "eHg= 1 b\r\nz\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("ms " B64_240 "eHh4eHh4 1 b k\r\nz\r\n",
			"STORE set key=" X180 "xxxxxx arguments= b k value=z +binary-key +b\n"),
		ROW("mg Zm9 b\r\nmg Zm9? b\r\nmg Zm9vYg b\r\nmg =m9v b\r\nmg Z=9v b\r\nmg Z=== "
		    "b\r\nmg ==== b\r\n",
			"REFUSE BAD_KEY_ENCODING\nREFUSE BAD_KEY_ENCODING\nREFUSE "
			"BAD_KEY_ENCODING\nREFUSE BAD_KEY_ENCODING\n"
			"REFUSE BAD_KEY_ENCODING\nREFUSE BAD_KEY_ENCODING\nREFUSE "
			"BAD_KEY_ENCODING\n"),
		ROW("ms Zm9? 2 b\r\nhi\r\nmn\r\n", "REFUSE BAD_KEY_ENCODING\nNOOP\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

static void
test_base64(void **state)
{
	/* From RFC 4648, section 10, and the two digits that aren't letters. */
	static const char *const vectors[][2] = {
		{"f", "Zg=="},
		{"fo", "Zm8="},
		{"foo", "Zm9v"},
		{"foob", "Zm9vYg=="},
		{"fooba", "Zm9vYmE="},
		{"foobar", "Zm9vYmFy"},
		{"\xfb\xff\xbf", "+/+/"},
	};
	uint8_t text[BASE64_ENCODED_SIZE(KEY_SIZE_MAX)], data[KEY_SIZE_MAX],
		back[sizeof text / 4 * 3];

	(void)state;
	for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
		const char *plain = vectors[i][0], *code = vectors[i][1];
		size_t size = strlen(plain);

		assert_ptr_equal(
			base64_encode(text, (const uint8_t *)plain, size), text + strlen(code));
		assert_memory_equal(text, code, strlen(code));
		assert_int_equal(base64_decode(back, (const uint8_t *)code, strlen(code)), size);
		assert_memory_equal(back, plain, size);
	}
	for (size_t size = 1; size <= KEY_SIZE_MAX; size++) {
		for (size_t i = 0; i < size; i++)
			data[i] = (uint8_t)(i * 37 + size * 101);
		uint8_t *end = base64_encode(text, data, size);

		assert_int_equal(end - text, BASE64_ENCODED_SIZE(size));
		assert_int_equal(base64_decode(back, text, (size_t)(end - text)), size);
		assert_memory_equal(back, data, size);
	}
	assert_int_equal(base64_decode(back, (const uint8_t *)"", 0), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_get),
		cmocka_unit_test(test_set),
		cmocka_unit_test(test_delete_arithmetic_inspect),
		cmocka_unit_test(test_base64_keys),
		cmocka_unit_test(test_base64),
	};

	return cmocka_run_group_tests_name("proto_meta", tests, NULL, NULL);
}
