//! What a plain scalar means, by the rules of YAML 1.1 as Go's yaml.v2 reads them, which
//! `sigs.k8s.io/yaml` and with it every Kubernetes tool is built on.
//!
//! Only scalars without quotes come here: `0644` is 420, `yes` is true, `1_000` is 1000, `1.0` is
//! 1, `2001-01-01` and `1:30` are text.

use super::node::Value;
use serde_json::Number;

/// The value of a plain scalar; `Err` for a number that JSON, and so Kubernetes, has no notation
/// for.
pub(super) fn resolve(text: &str) -> Result<Value, &'static str> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Ok(Value::Bool(true));
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Ok(Value::Bool(false));
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF"
        | "-.inf" | "-.Inf" | "-.INF" => return Err("is not a number that JSON can hold"),
        _ => {}
    }
    Ok(number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number))
}

/// The number that a plain scalar is, `None` when it is text.
fn number(text: &str) -> Option<Number> {
    let first = text.bytes().next()?;
    if !(first.is_ascii_digit() || matches!(first, b'+' | b'-' | b'.')) {
        return None;
    }
    let plain = if first == b'.' { text.to_owned() } else { text.replace('_', "") };
    if first != b'.'
        && let Some(integer) = integer(&plain)
    {
        return Some(integer);
    }
    // What is too large for a float is text, as it is for Go.
    if is_decimal(&plain) { canonical(plain.parse().ok()?) } else { None }
}

/// A number in one form only: whole ones as integers, so that `1.0`, `1e0` and `1` are the same.
fn canonical(float: f64) -> Option<Number> {
    // Beyond 2^53 not every integer is a float: those stay as they are.
    if float.fract() == 0.0 && float.abs() <= 9_007_199_254_740_992.0 {
        return format!("{float:.0}").parse::<i64>().ok().map(Number::from);
    }
    Number::from_f64(float)
}

/// Go's `strconv.ParseInt` with base 0, then the same for unsigned.
fn integer(plain: &str) -> Option<Number> {
    let (sign, digits) = match plain.as_bytes() {
        [b'-', ..] => ("-", &plain[1..]),
        [b'+', ..] => ("", &plain[1..]),
        _ => ("", plain),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return None;
    }
    if let Ok(signed) = i64::from_str_radix(&format!("{sign}{digits}"), radix) {
        return Some(signed.into());
    }
    if sign.is_empty() { u64::from_str_radix(digits, radix).ok().map(Number::from) } else { None }
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_decimal(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let exponent_is_fine = exponent.is_none_or(|e| {
        let e = e.strip_prefix(['-', '+']).unwrap_or(e);
        !e.is_empty() && digits(e)
    });
    digits(whole)
        && digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent_is_fine
}
