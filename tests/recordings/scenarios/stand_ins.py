"""Stand-ins of tools that are slow, or not installed where sessions are recorded; they print what the tools print."""

# ruff: noqa: E501  # texts of models and of tools are on one line

CARGO = """
files = sorted(__import__('glob').glob('src/*.rs'))
bad = [(f, n, l) for f in files for n, l in enumerate(text_of(f).splitlines(), 1) if 'BROKEN' in l]
print('   Compiling shop v0.3.%d (/home/agent/work)' % len(files), file=sys.stderr)
for f, n, l in bad[:1]:
    kind = l.split('BROKEN:')[1].split('*/')[0].strip()
    fail(f'error[E0{300 + len(kind)}]: {kind}', f'  --> {f}:{n}:5', '   |', f'{n:2} | {l}', '   |     ^^^^^^^^', '',
         'error: could not compile `shop` (bin "shop") due to 1 previous error', status=101)
if sys.argv[1] == 'test':
    print(f'    Finished `test` profile [unoptimized + debuginfo] target(s) in {duration(4, 60)}s', file=sys.stderr)
    print(f'     Running unittests src/main.rs (target/debug/deps/shop-{digest()})', file=sys.stderr)
    tests = [w.split('(')[0] for f in files for w in text_of(f).split('fn test_')[1:]]
    print(f'\\nrunning {len(tests)} tests', *[f'test tests::test_{t} ... ok' for t in tests], sep='\\n')
    print(f'\\ntest result: ok. {len(tests)} passed; 0 failed; 0 ignored; 0 measured; finished in {duration(0, 2)}s')
else:
    print(f'    Finished `dev` profile [unoptimized + debuginfo] target(s) in {duration(4, 60)}s', file=sys.stderr)
"""
"""Lines with a comment `/* BROKEN: text */` are errors."""

NPM = """
script = ' '.join(sys.argv[1:])
print(f'\\n> shop@1.4.0 {script}\\n')
if 'lint' in script:
    bad = [(n, l) for n, l in enumerate(text_of('src/index.js').splitlines(), 1) if 'var ' in l]
    for n, l in bad:
        print(f'/home/agent/work/src/index.js\\n  {n}:1  error  Unexpected var, use let or const instead  no-var\\n')
    if bad:
        print(f'✖ {len(bad)} problem ({len(bad)} error, 0 warnings)')
        sys.exit(1)
elif 'test' in script:
    bad = 'BUG' in text_of('src/index.js')
    print(' FAIL  src/index.test.js' if bad else ' PASS  src/index.test.js')
    print(f'Tests:       {"1 failed, 11" if bad else "12"} passed, 12 total\\nTime:        {duration(0.6, 3.2, 3)} s')
    sys.exit(1 if bad else 0)
else:
    print(f'vite v7.1.3 building for production...\\n✓ 148 modules transformed.\\n'
          f'dist/assets/index-{digest(8)}.js   143.61 kB │ gzip: 46.20 kB\\n✓ built in {duration(1, 9)}s')
"""

GROWING_LOG = """
lines = count('lines')
targets = ['parser', 'lexer', 'ast', 'types', 'codegen', 'linker', 'runtime', 'gc', 'io', 'net', 'json', 'regex']
for n in range(min(lines * 2, 60)):
    print(f'[{n * 100 // 60:3}%] Building CXX object src/CMakeFiles/core.dir/{targets[n % 12]}_{n}.cpp.o')
"""
"""A log of a build that grows by two lines each time."""

PENDING = """
n = count('pending')
limit = int(text_of('/home/agent/.limit') or 6)
if n <= limit:
    print(f'{stamp("%H:%M:%S")} deploy web-7d9f: Pending (pid {random.randint(2000, 32000)}, waited {n * 55}s)')
else:
    print(f'{stamp("%H:%M:%S")} deploy web-7d9f: Available, 3 of 3 replicas ready')
"""

NOISY = """
print(f'{stamp()} INFO  worker[{random.randint(1000, 32000)}] run {digest(8)} started at 0x{digest(12)}')
print('ERROR config: key "region" is not set')
print(f'finished in {duration(0.2, 1.9)}s')
sys.exit(3)
"""
"""Fails in the same way with other times, numbers and hashes each time."""

RANDOM = """
a, b = random.gauss(0.71, 0.04), random.gauss(12, 2)
words = random.sample(['stable', 'drifting', 'noisy', 'flat', 'rising', 'falling', 'mixed', 'odd'], 3)
print('accuracy %.4f loss %.3f' % (a, b))
print('shape:', ' '.join(words))
"""

CURL_503 = """
if count('curl') > 7:
    pause(1)
    sys.exit(0)
print('curl: (22) The requested URL returned error: 503', file=sys.stderr)
pause(random.uniform(1, 4))
sys.exit(22)
"""

HANG = """
pause(float(text_of('/home/agent/.hang') or 1300))
print('waiting for lock on table "orders" held by pid 4471')
sys.exit(1)
"""

CHECKER = """
name = sys.argv[0].rpartition('/')[2]
bad = [(n, l) for n, l in enumerate(text_of('app/service.py').splitlines(), 1) if 'FIXME' in l]
for n, l in bad:
    print(f'app/service.py:{n}: error: {l.split("FIXME")[1].strip()}')
print(f'Found {len(bad)} errors in 1 file (checked 14 source files)' if bad else 'All checks passed!')
sys.exit(1 if bad else 0)
"""
"""`ruff` and `mypy`: lines with FIXME are errors."""

BUNDLE = """
import os
os.makedirs('dist', exist_ok=True)
release = '--release' in sys.argv
open('dist/bundle.js', 'w').write('console.log("shop")' + ('' if release else ' // debug build with source maps') + '\\n')
print(f'bundled 41 modules into dist/bundle.js ({"release" if release else "debug"}) in {duration(1, 4)}s')
"""
