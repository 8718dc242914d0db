<?php
// SPDX-License-Identifier: BSD-2-Clause
// php-memcached against a running server: HOST PORT SOCKET UDP_PORT.

if (!extension_loaded('memcached')) {
    echo "SKIP: PHP has no memcached extension\n";
    exit(77);
}
[, $host, $port, $path] = $argv;
$checks = $wrong = 0;

function same($got, $want, $what)
{
    global $checks, $wrong;
    $checks++;
    if ($got === $want) {
        return;
    }
    $wrong++;
    printf("wrong: %s: got %.80s, not %.80s\n", $what, json_encode($got), json_encode($want));
}

function whole_client($c, $name, $binary)
{
    $says = function ($got, $want, $what) use ($name) {
        same($got, $want, "$name $what");
    };
    $code = function ($want, $what) use ($c, $says) {
        $says($c->getResultCode(), $want, $what);
    };
    $c->setOption(Memcached::OPT_BINARY_PROTOCOL, $binary);
    $c->setOption(Memcached::OPT_TCP_NODELAY, true);
    $c->setOption(Memcached::OPT_COMPRESSION, false);
    $c->flush();
    $says((bool) preg_match('/^[0-9.]+$/', current($c->getVersion())), true, 'version of digits and dots');
    $says($c->set('a', 'value'), true, 'set');
    $says($c->get('a'), 'value', 'get');
    $says($c->get('missing'), false, 'get of a missing key');
    $code(Memcached::RES_NOTFOUND, 'its result code');
    $bytes = implode('', array_map('chr', range(0, 255))) . "\r\nEND\r\n";
    $says($c->set('bytes', $bytes), true, 'set of all byte values');
    $says($c->get('bytes') === $bytes, true, 'get of all byte values');
    $says($c->set('empty', ''), true, 'set of nothing');
    $says($c->get('empty'), '', 'get of nothing');
    $large = str_repeat($bytes, 3900);
    $says($c->set('large', $large), true, 'set of a large value');
    $says($c->get('large') === $large, true, 'get of a large value');
    foreach (['int' => 5, 'float' => 2.5, 'bool' => true, 'array' => ['x' => [1, 2]]] as $key => $thing) {
        $says($c->set($key, $thing), true, "set of a $key (uses flags)");
        $says($c->get($key), $thing, "get of a $key");
    }
    $says($c->set(str_repeat('k', 250), 'long'), true, 'set, key of 250 bytes');
    $says($c->get(str_repeat('k', 250)), 'long', 'get, key of 250 bytes');

    $says($c->add('a', 'no'), false, 'add of a present key');
    $says($c->add('new', 'b'), true, 'add');
    $says($c->replace('gone', 'x'), false, 'replace of a missing key');
    $says($c->replace('new', 'B'), true, 'replace');
    $says($c->append('new', 'c'), true, 'append');
    $says($c->prepend('new', 'a'), true, 'prepend');
    $says($c->append('gone', 'c'), false, 'append to a missing key');
    $code(Memcached::RES_NOTSTORED, 'its result code');
    $says($c->get('new'), 'aBc', 'value after append and prepend');
    $got = $c->get('new', null, Memcached::GET_EXTENDED);
    $says($got['value'], 'aBc', 'get with cas');
    $says($c->cas($got['cas'], 'new', '1'), true, 'cas');
    $says($c->cas($got['cas'], 'new', '2'), false, 'old cas');
    $code(Memcached::RES_DATA_EXISTS, 'its result code');
    $says($c->cas($got['cas'], 'gone', '2'), false, 'cas of a missing key');

    $says($c->set('n', 10), true, 'set of a number');
    $says($c->increment('n', 5), 15, 'increment');
    $says($c->decrement('n', 20), 0, 'decrement stops at 0');
    $says($c->increment('gone'), false, 'increment of a missing key');
    if ($binary) {
        $says($c->increment('made', 5, 77), 77, 'increment with an initial value');
        $says($c->increment('made', 5, 77), 82, 'second increment with an initial value');
    }

    $many = [];
    for ($i = 0; $i < 300; $i++) {
        $many["m$i"] = "value $i";
    }
    $says($c->setMulti($many), true, 'setMulti');
    $got = $c->getMulti(array_merge(array_keys($many), ['gone']));
    ksort($got);
    $want = $many;
    ksort($want);
    $says($got, $want, 'getMulti');
    $says($c->getDelayed(['m1', 'm2', 'gone']), true, 'getDelayed');
    $says(count($c->fetchAll()), 2, 'fetchAll');
    $says($c->delete('m1'), true, 'delete');
    $says($c->delete('m1'), false, 'delete of a missing key');
    $says($c->deleteMulti(['m2', 'm1']), ['m2' => true, 'm1' => Memcached::RES_NOTFOUND], 'deleteMulti');

    $says($c->set('t1', 'x', 1), true, 'set for 1 s');
    $says($c->set('t2', 'x', 1), true, 'set for 1 s, to be touched');
    $says($c->touch('t2', 100), true, 'touch');
    $says($c->touch('gone', 100), false, 'touch of a missing key');
    usleep(2200000);
    $says($c->getMulti(['t1', 't2']), ['t2' => 'x'], 'after the second has passed');

    $stats = current($c->getStats());
    $says($stats['curr_items'] > 250, true, 'stats: curr_items');
    $says($c->set('big', str_repeat('x', (1 << 20) + 1)), false, 'set of 1 MiB and a byte');
    $says($c->get('a'), 'value', 'in step after the refused set');
    $says($c->flush(), true, 'flush');
    $says($c->get('a'), false, 'get after flush');
}

foreach ([false, true] as $binary) {
    $c = new Memcached();
    $c->addServer($host, (int) $port);
    whole_client($c, $binary ? 'binary' : 'text', $binary);
    $buffered = new Memcached();
    $buffered->addServer($host, (int) $port);
    $buffered->setOption(Memcached::OPT_BINARY_PROTOCOL, $binary);
    $buffered->setOption(Memcached::OPT_BUFFER_WRITES, true);
    for ($i = 0; $i < 100; $i++) {
        $buffered->set("b$i", "value $i");
    }
    same($buffered->get('b99'), 'value 99', 'get after buffered sets');
    same($c->get('b0'), 'value 0', 'get of a buffered set by another client');
}
$c = new Memcached();
$c->addServer($path, 0);
whole_client($c, 'unix', false);
$quiet = new Memcached();
$quiet->addServer($host, (int) $port);
$quiet->setOption(Memcached::OPT_NOREPLY, true);
$quiet->set('quiet', 'value');
$quiet->setOption(Memcached::OPT_NOREPLY, false);
same($quiet->get('quiet'), 'value', 'get after a set without reply');
echo "$checks checks, $wrong wrong\n";
exit($wrong ? 1 : 0);
