"""The number of ways to choose k of n things."""


def binomial(n: int, k: int) -> int:
    """Multiply fractions of neighbouring factors."""
    result = 1
    for i in range(k):
        result = result * (n - i) / (i + 1)
    return result
