//! Kubernetes resource quantities (`resource.Quantity`): `100m`, `1.5`, `64Mi`, `2e3`.
//!
//! Held as an exact number of nano-units, so that comparing and rounding up are exact. Amounts
//! beyond what fits saturate, as upstream does at 2^63 - 1.

use std::{fmt, iter::Sum, ops::Add};
use thiserror::Error;

const NANO: i128 = 10_i128.pow(NANO_DECIMALS);
const NANO_DECIMALS: u32 = 9;
/// Digits after which a number is refused instead of computed with.
const MAX_LEN: usize = 64;
/// Digits before the point; an amount with more counts as the largest one.
const MAX_WHOLE: usize = 28;
/// Digits of a number with decimals that are computed with.
const MAX_DIGITS: usize = 20;

/// An amount of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    nano: i128,
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)]
pub struct QuantityError;

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self { nano: 0 };

    /// A whole number of units (bytes, cores, pieces).
    #[must_use]
    pub fn from_units(units: i64) -> Self {
        Self { nano: i128::from(units) * NANO }
    }

    /// A number of thousandths (millicores).
    #[must_use]
    pub fn from_milli(milli: i64) -> Self {
        Self { nano: i128::from(milli) * (NANO / 1000) }
    }

    /// Reads the Kubernetes notation.
    ///
    /// # Errors
    /// When `text` is not a quantity.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        if text.len() > MAX_LEN {
            return Err(QuantityError);
        }
        let (sign, rest) = match text.as_bytes().first() {
            Some(b'-') => (-1, &text[1..]),
            Some(b'+') => (1, &text[1..]),
            _ => (1, text),
        };
        let number_len = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, suffix) = rest.split_at(number_len);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(QuantityError);
        }
        let (multiplier, divisor) = scale(suffix)?;
        let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
        if whole.len() > MAX_WHOLE {
            return Ok(Self { nano: i128::from(sign) * i128::from(i64::MAX) * NANO });
        }
        // Further decimals only round up.
        let decimals = fraction.len().min(MAX_DIGITS.saturating_sub(whole.len()));
        let (fraction, beyond) = fraction.split_at(decimals);
        let digits = [whole, fraction].concat();
        let mantissa: i128 =
            if digits.is_empty() { 0 } else { digits.parse().map_err(|_| QuantityError)? };
        let mantissa = mantissa + i128::from(!beyond.is_empty());
        let decimals = u32::try_from(decimals).map_err(|_| QuantityError)?;
        let up = 10_i128.pow(NANO_DECIMALS.saturating_sub(decimals));
        let down = 10_i128.pow(decimals.saturating_sub(NANO_DECIMALS));
        // mantissa * multiplier / divisor in nano-units, rounded up (away from zero), saturating.
        let limit = i128::from(i64::MAX) * NANO;
        let scaled = mantissa.checked_mul(multiplier).and_then(|n| n.checked_mul(up));
        let nano = match (scaled, divisor.checked_mul(down)) {
            (Some(n), Some(d)) => (n / d + i128::from(n % d != 0)).min(limit),
            (None, _) => limit,
            (Some(n), None) => i128::from(n != 0),
        };
        Ok(Self { nano: i128::from(sign) * nano })
    }

    /// The value in whole units, rounded up (bytes, pieces, cores), as `Quantity.Value()`.
    #[must_use]
    pub fn value(self) -> i64 {
        self.ceil_to(NANO)
    }

    /// The value in thousandths, rounded up, as `Quantity.MilliValue()`.
    #[must_use]
    pub fn milli_value(self) -> i64 {
        self.ceil_to(NANO / 1000)
    }

    /// Whether it is exactly zero.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.nano == 0
    }

    /// Whether it is below zero.
    #[must_use]
    pub fn is_negative(self) -> bool {
        self.nano < 0
    }

    /// `self / divisor` rounded up, for `resourceFieldRef`; `None` for a zero divisor.
    #[must_use]
    pub fn ceil_div(self, divisor: Self) -> Option<i64> {
        if divisor.nano == 0 {
            return None;
        }
        i64::try_from(
            self.nano.div_euclid(divisor.nano)
                + i128::from(self.nano.rem_euclid(divisor.nano) != 0),
        )
        .ok()
    }

    fn ceil_to(self, unit: i128) -> i64 {
        let whole = self.nano.div_euclid(unit) + i128::from(self.nano.rem_euclid(unit) != 0);
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }
}

/// Multiplier and divisor of a suffix.
fn scale(suffix: &str) -> Result<(i128, i128), QuantityError> {
    Ok(match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        other => {
            let exponent = other.strip_prefix(['e', 'E']).ok_or(QuantityError)?;
            let exponent: i32 = exponent.parse().map_err(|_| QuantityError)?;
            let power =
                10_i128.checked_pow(exponent.unsigned_abs().min(37)).ok_or(QuantityError)?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    })
}

impl Add for Quantity {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { nano: self.nano.saturating_add(other.nano) }
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::ZERO, Add::add)
    }
}

/// The amount as a plain decimal number: `1.5`, `67108864`.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.nano < 0 { "-" } else { "" };
        let (whole, fraction) = (self.nano.abs() / NANO, self.nano.abs() % NANO);
        if fraction == 0 {
            return write!(f, "{sign}{whole}");
        }
        let digits = format!("{fraction:09}");
        write!(f, "{sign}{whole}.{}", digits.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_notation_and_rounds_up() {
        for (text, value, milli) in [
            ("0", 0, 0),
            ("1", 1, 1000),
            ("100m", 1, 100),
            ("1.5", 2, 1500),
            (".5", 1, 500),
            ("5.", 5, 5000),
            ("64Mi", 67_108_864, 67_108_864_000),
            ("1k", 1000, 1_000_000),
            ("2e3", 2000, 2_000_000),
            ("2E-1", 1, 200),
            ("1n", 1, 1),
            ("-1", -1, -1000),
            ("0.1Gi", 107_374_183, 107_374_182_400),
            ("1Ei", 1 << 60, i64::MAX),
            ("1.000000000000000000000000000000000000", 1, 1000),
            ("0000000000000000000000000000000000002.5", 3, 2500),
            ("0.500000000000000000000000000000000001", 1, 501),
            ("0.00000000001234Gi", 1, 14),
            ("100000000000000000000000n", 100_000_000_000_000, 100_000_000_000_000_000),
            ("0.25000000000000000000Ei", 1 << 58, i64::MAX),
            ("0.2500000000001Ei", (1 << 58) + 115_293, i64::MAX),
        ] {
            let quantity = Quantity::parse(text).unwrap();
            assert_eq!((quantity.value(), quantity.milli_value()), (value, milli), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_quantity() {
        for text in ["", "-", ".", "1.2.3", "1 Mi", "1mi", "Mi", "1e", "1ex", "0x10", "1KiB", "½"]
        {
            assert_eq!(Quantity::parse(text), Err(QuantityError), "{text}");
        }
    }

    #[test]
    fn saturates_instead_of_overflowing() {
        for text in ["9999999999999999999999999", "9e36", "99999Ei", "1e99999"] {
            if let Ok(quantity) = Quantity::parse(text) {
                assert_eq!(quantity.value(), i64::MAX, "{text}");
            }
        }
        assert_eq!(Quantity::parse("1e-30").unwrap().value(), 1);
    }

    #[test]
    fn divides_rounding_up() {
        let half = Quantity::parse("500m").unwrap();
        assert_eq!(half.ceil_div(Quantity::from_units(1)), Some(1));
        assert_eq!(half.ceil_div(Quantity::from_milli(1)), Some(500));
        assert_eq!(half.ceil_div(Quantity::ZERO), None);
    }

    #[test]
    fn prints_a_plain_number() {
        assert_eq!(Quantity::parse("1500m").unwrap().to_string(), "1.5");
        assert_eq!(Quantity::parse("1Ki").unwrap().to_string(), "1024");
        assert_eq!(Quantity::parse("-1m").unwrap().to_string(), "-0.001");
    }
}
