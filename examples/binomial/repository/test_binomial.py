"""Run it with `python3 test_binomial.py`: it fails, because floating-point numbers have too few digits."""

from math import comb

from binomial import binomial

for n in (50, 100):
    assert binomial(n, n // 2) == comb(n, n // 2), f"C({n}, {n // 2}) is {comb(n, n // 2)}, not {binomial(n, n // 2)}"
print(f"C(50, 25) = {binomial(50, 25)}, checked")
