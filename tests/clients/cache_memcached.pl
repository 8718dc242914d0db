#!/usr/bin/perl
# SPDX-License-Identifier: BSD-2-Clause
# Perl's Cache::Memcached and Cache::Memcached::Fast (both text) against a
# running server: MODULE HOST PORT SOCKET UDP_PORT.

use strict;
use warnings;

my ($module, $host, $port, $path) = @ARGV;
(my $file = "$module.pm") =~ s{::}{/}g;
if (!eval { require $file; 1 }) {
    print "SKIP: there is no Perl module $module\n";
    exit 77;
}
my $fast = $module =~ /Fast/;
my ($checks, $wrong) = (0, 0);

sub text { my $v = shift; return defined $v ? length $v > 80 ? length($v) . ' bytes' : $v : 'undef' }

# The prototypes give the calls in their arguments scalar context.
sub same($$$) {
    my ($got, $want, $what) = @_;
    $checks++;
    return if defined $got == defined $want && (!defined $got || $got eq $want);
    $wrong++;
    printf "wrong: %s: got %s, not %s\n", $what, text($got), text($want);
}

sub holds($$) { my ($got, $what) = @_; same($got ? 1 : 0, 1, $what) }
sub fails($$) { my ($got, $what) = @_; same($got ? 1 : 0, 0, $what) }

sub whole_client {
    my ($c, $name) = @_;
    my $bytes = join '', map { chr } 0 .. 255;
    my $large = $bytes x 3900;

    $c->flush_all;
    holds($c->set('a', 'value'), "$name set");
    same($c->get('a'), 'value', "$name get");
    same($c->get('missing'), undef, "$name get of a missing key");
    holds($c->set('bytes', "$bytes\r\nEND\r\n"), "$name set of all byte values");
    same($c->get('bytes'), "$bytes\r\nEND\r\n", "$name get of all byte values");
    holds($c->set('empty', ''), "$name set of nothing");
    same($c->get('empty'), '', "$name get of nothing");
    holds($c->set('large', $large), "$name set of a large value");
    same($c->get('large'), $large, "$name get of a large value");
    holds($c->set('thing', { list => [1, 2, 3] }), "$name set of a structure (uses flags)");
    same($c->get('thing')->{list}[2], 3, "$name get of a structure");
    holds($c->set('k' x 250, 'long'), "$name set, key of 250 bytes");
    same($c->get('k' x 250), 'long', "$name get, key of 250 bytes");

    fails($c->add('a', 'no'), "$name add of a present key");
    holds($c->add('new', 'b'), "$name add");
    fails($c->replace('gone', 'x'), "$name replace of a missing key");
    holds($c->replace('new', 'B'), "$name replace");
    if ($c->can('append')) {
        holds($c->append('new', 'c'), "$name append");
        holds($c->prepend('new', 'a'), "$name prepend");
        fails($c->append('gone', 'c'), "$name append to a missing key");
        same($c->get('new'), 'aBc', "$name value after append and prepend");
    }
    holds($c->set('n', 10), "$name set of a number");
    same($c->incr('n', 5), 15, "$name incr");
    same(int($c->decr('n', 20)), 0, "$name decr stops at 0");
    fails($c->incr('gone'), "$name incr of a missing key");

    my %many = map { ("m$_" => "value $_") } 1 .. 300;
    $c->set($_, $many{$_}) for keys %many;
    my $got = $c->get_multi(keys %many, 'gone');
    same(scalar(keys %$got), 300, "$name get_multi");
    same($got->{$_}, $many{$_}, "$name get_multi of $_") for keys %many;
    holds($c->delete('m1'), "$name delete");
    fails($c->delete('m1'), "$name delete of a missing key");

    holds($c->set('t1', 'x', 1), "$name set for 1 s");
    holds($c->set('t2', 'x', 60), "$name set for 60 s");
    extended($c, $name) if $fast;
    select undef, undef, undef, 2.2;
    same($c->get('t1'), undef, "$name value after it has expired");
    same($c->get('t2'), 'x', "$name value that has not expired");
    $c->flush_all;
    same($c->get('a'), undef, "$name get after flush_all");
}

# What only Cache::Memcached::Fast offers.
sub extended {
    my ($c, $name) = @_;
    my ($cas, $value) = @{ $c->gets('new') };
    same($value, 'aBc', "$name gets");
    holds($c->cas('new', $cas, '1'), "$name cas");
    fails($c->cas('new', $cas, '2'), "$name old cas");
    same($c->cas('gone', $cas, '2') ? 1 : 0, 0, "$name cas of a missing key");
    holds($c->touch('t2', 100), "$name touch");
    fails($c->touch('gone', 100), "$name touch of a missing key");
    if ($c->can('gat')) {
        same($c->gat(100, 'new'), '1', "$name gat");
        same($c->gat(100, 'gone'), undef, "$name gat of a missing key");
        same(scalar(keys %{ $c->gat_multi(100, 'new', 'm2', 'gone') }), 2, "$name gat_multi");
    }
    my $result = $c->set_multi(map { [ "p$_", $_ ] } 1 .. 100);
    same(scalar(grep { $_ } values %$result), 100, "$name set_multi, pipelined");
    $c->set("q$_", $_) for 1 .. 100;    # in void context: noreply
    $c->incr('q1', 9);
    $c->delete('q2');
    $c->nowait_push;
    same($c->get('q100'), 100, "$name set, noreply");
    same($c->get('q1'), 10, "$name incr, noreply");
    same($c->get('q2'), undef, "$name delete, noreply");
    my ($version) = values %{ $c->server_versions };
    holds($version =~ /^[0-9.]+$/, "$name version of digits and dots");
}

whole_client($module->new({ servers => ["$host:$port"], compress_threshold => 0 }), 'tcp');
whole_client($module->new({ servers => [$path], compress_threshold => 0 }), 'unix');
if (!$fast) {
    my $c = $module->new({ servers => ["$host:$port"] });
    my $stats = $c->stats('misc')->{hosts}{"$host:$port"}{misc};
    holds($stats->{cmd_set} > 0, 'stats: cmd_set');
}
print "$checks checks, $wrong wrong\n";
exit($wrong ? 1 : 0);
