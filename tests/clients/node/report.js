// SPDX-License-Identifier: BSD-2-Clause
// Counts comparisons and ends the program with the outcome.
'use strict';

class Report {
	constructor() {
		this.checks = 0;
		this.wrong = 0;
	}

	same(got, want, what) {
		this.checks++;
		if (got === want)
			return;
		this.wrong++;
		console.log('wrong: %s: got %s, not %s', what, String(got).slice(0, 80), String(want).slice(0, 80));
	}

	run(body) {
		body().catch((error) => {
			this.wrong++;
			console.log('wrong: it threw', error);
		}).then(() => {
			console.log('%d checks, %d wrong', this.checks, this.wrong);
			process.exit(this.wrong ? 1 : 0);
		});
	}
}

module.exports = { Report };
