"""Real numbers from random bits, with equal results on every machine.

[Algorithm] 53 bits of a draw as a fraction; the logarithm by argument reduction and fdlibm's polynomial; the normal
    quantile by Wichura's rational approximations, good to 1e-15. Only operations that IEEE 754 rounds exactly
    (+, -, *, /, square root) are used, so trainers and servers with different C libraries compute equal bits.
    Source: Wichura, "Algorithm AS 241: The percentage points of the normal distribution", Applied Statistics 1988;
    Sun Microsystems, fdlibm, ``e_log.c``, 1993.
[Cost] About 30 multiplications per quantile; the logarithm only for the outer 15 % of fractions.
[Not chosen] ``math.log``, ``math.cos``: C libraries differ in the last bit, which can change the drawn neighbour.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hopstream.kernels.compiling import inlined, kernel

FRACTION_STEP = 2.0**-53
HALF_PI = math.pi / 2
_SIGN = np.uint64(1 << 63)


@intrinsic
def _bits_of(typing_context: Any, value: Any) -> Any:
    signature = types.uint64(types.float64)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return signature, emit


@intrinsic
def _float_of(typing_context: Any, bits: Any) -> Any:
    signature = types.float64(types.uint64)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return signature, emit


@inlined
def fraction(bits: np.uint64) -> float:
    """Return the upper 53 of 64 random bits as a multiple of 2**-53 in [0, 1)."""
    return np.float64(np.uint64(bits) >> np.uint64(11)) * FRACTION_STEP


@inlined
def open_fraction(bits: np.uint64) -> float:
    """Return the same as ``fraction``, half a step higher and below 1: a number inside (0, 1)."""
    return min((np.float64(np.uint64(bits) >> np.uint64(11)) + 0.5) * FRACTION_STEP, 1.0 - FRACTION_STEP)


@inlined
def ordered_bits(value: float) -> np.uint64:
    """Convert a float to a uint64 with the same order; 0.0 equals -0.0, and NaN is not allowed."""
    bits = _bits_of(value + 0.0)
    if bits & _SIGN:
        return ~bits
    return bits | _SIGN


@inlined
def number_of(bits: np.uint64) -> float:
    """Return the inverse of ``ordered_bits``."""
    if bits & _SIGN:
        return _float_of(bits ^ _SIGN)
    return _float_of(~bits)


@kernel
def natural_log(value: float) -> float:
    """Return the natural logarithm of a normal positive number, exact to about one unit in the last place."""
    mantissa, exponent = math.frexp(value)
    if mantissa < 0.7071067811865476:
        mantissa *= 2.0
        exponent -= 1
    f = mantissa - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    odd = 2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)
    rest = z * (6.666666666666735130e-01 + w * odd) + even
    half = 0.5 * f * f
    low = s * (half + rest) + exponent * 1.90821492927058770002e-10
    return exponent * 6.93147180369123816490e-01 - ((half - low) - f)


@kernel
def normal_quantile(u: float) -> float:
    """Return the quantile of the standard normal distribution at ``u`` in (0, 1)."""
    q = u - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        top = 3.3430575583588128105e4 + r * 2.5090809287301226727e3
        top = 4.5921953931549871457e4 + r * (6.7265770927008700853e4 + r * top)
        top = 1.9715909503065514427e3 + r * (1.3731693765509461125e4 + r * top)
        top = 3.3871328727963666080e0 + r * (1.3314166789178437745e2 + r * top)
        bottom = 2.8729085735721942674e4 + r * 5.2264952788528545610e3
        bottom = 2.1213794301586595867e4 + r * (3.9307895800092710610e4 + r * bottom)
        bottom = 6.8718700749205790830e2 + r * (5.3941960214247511077e3 + r * bottom)
        return q * top / (1.0 + r * (4.2313330701600911252e1 + r * bottom))
    r = math.sqrt(-natural_log(u if q < 0.0 else 1.0 - u))
    if r <= 5.0:
        r -= 1.6
        top = 2.27238449892691845833e-2 + r * 7.74545014278341407640e-4
        top = 1.27045825245236838258e0 + r * (2.41780725177450611770e-1 + r * top)
        top = 5.76949722146069140550e0 + r * (3.64784832476320460504e0 + r * top)
        top = 1.42343711074968357734e0 + r * (4.63033784615654529590e0 + r * top)
        bottom = 5.47593808499534494600e-4 + r * 1.05075007164441684324e-9
        bottom = 1.48103976427480074590e-1 + r * (1.51986665636164571966e-2 + r * bottom)
        bottom = 1.67638483018380384940e0 + r * (6.89767334985100004550e-1 + r * bottom)
        bottom = 1.0 + r * (2.05319162663775882187e0 + r * bottom)
    else:
        r -= 5.0
        top = 2.71155556874348757815e-5 + r * 2.01033439929228813265e-7
        top = 2.65321895265761230930e-2 + r * (1.24266094738807843860e-3 + r * top)
        top = 1.78482653991729133580e0 + r * (2.96560571828504891230e-1 + r * top)
        top = 6.65790464350110377720e0 + r * (5.46378491116411436990e0 + r * top)
        bottom = 1.42151175831644588870e-7 + r * 2.04426310338993978564e-15
        bottom = 7.86869131145613259100e-4 + r * (1.84631831751005468180e-5 + r * bottom)
        bottom = 1.36929880922735805310e-1 + r * (1.48753612908506148525e-2 + r * bottom)
        bottom = 1.0 + r * (5.99832206555887937690e-1 + r * bottom)
    return -top / bottom if q < 0.0 else top / bottom


@kernel
def quarter_turn(share: float) -> tuple[float, float]:
    """Return the cosine and sine of ``share`` of a right angle, ``share`` in [0, 1], to 1e-15."""
    is_past_half = share > 0.5
    angle = (1.0 - share if is_past_half else share) * HALF_PI
    square = angle * angle
    cosine = sine = 1.0
    for k in range(18, 0, -2):
        cosine = 1.0 - cosine * square / (k * (k - 1))
        sine = 1.0 - sine * square / (k * (k + 1))
    sine *= angle
    return (sine, cosine) if is_past_half else (cosine, sine)
