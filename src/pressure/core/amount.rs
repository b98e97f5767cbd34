//! Amounts of thresholds, and amounts as messages show them.

use crate::model::{Quantity, Signal};
use std::fmt;

/// Millionths of a percent in a whole.
const WHOLE: u32 = 100_000_000;
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];

/// An amount of a signal: a number (bytes, inodes, process ids) or a part of its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Amount {
    /// Bytes, inodes or process ids.
    Number(u64),
    /// A part of the capacity, in millionths of a percent: at most 100 %.
    Percent(u32),
}

/// Why a text is no amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AmountError {
    /// Neither a quantity nor a percentage.
    Syntax,
    /// Below zero.
    Negative,
    /// Above 100 %.
    AboveWhole,
}

impl Amount {
    /// Whole percent, at most 100.
    #[must_use]
    pub const fn percent(percent: u32) -> Self {
        Self::Percent(if percent > 100 { WHOLE } else { percent * (WHOLE / 100) })
    }

    /// Reads `100Mi` or `12.5%`.
    pub(super) fn read(text: &str) -> Result<Self, AmountError> {
        let Some(percent) = text.strip_suffix('%') else {
            let quantity = Quantity::parse(text).map_err(|_| AmountError::Syntax)?;
            return match u64::try_from(quantity.value()) {
                // -0.5 is rounded up to 0.
                Ok(number) if !quantity.is_negative() => Ok(Self::Number(number)),
                Ok(_) | Err(_) => Err(AmountError::Negative),
            };
        };
        let digits = percent.strip_prefix(['-', '+']).unwrap_or(percent);
        if !digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(AmountError::Syntax);
        }
        let quantity = Quantity::parse(percent).map_err(|_| AmountError::Syntax)?;
        if quantity.is_negative() {
            return Err(AmountError::Negative);
        }
        if quantity > Quantity::from_units(100) {
            return Err(AmountError::AboveWhole);
        }
        // Exact: floating point would make 10 % of a disk a few bytes more or less than it is.
        let part = Quantity::parse("0.000001").ok().and_then(|unit| quantity.ceil_div(unit));
        let part = part.and_then(|part| u32::try_from(part).ok());
        part.map(Self::Percent).ok_or(AmountError::Syntax)
    }

    /// True for 0 % and 100 %, which disable a threshold.
    pub(super) fn is_off(self) -> bool {
        matches!(self, Self::Percent(0 | WHOLE))
    }

    /// The number for a capacity; a part is rounded down.
    #[must_use]
    pub fn resolve(self, capacity: u64) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Percent(part) => {
                let number = u128::from(capacity) * u128::from(part) / u128::from(WHOLE);
                u64::try_from(number).unwrap_or(u64::MAX)
            }
        }
    }

    /// The number for a capacity as messages show it: a number in its original form, a part in
    /// binary units.
    #[must_use]
    pub fn shown(self, capacity: u64) -> String {
        match self {
            Self::Number(number) => shortest(number),
            Self::Percent(_) => binary(self.resolve(capacity)),
        }
    }
}

/// `100Mi`, `10%`, `12.5%`
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => f.write_str(&shortest(*number)),
            Self::Percent(part) => {
                let (whole, fraction) = (part / (WHOLE / 100), part % (WHOLE / 100));
                if fraction == 0 {
                    return write!(f, "{whole}%");
                }
                let digits = format!("{fraction:06}");
                write!(f, "{whole}.{}%", digits.trim_end_matches('0'))
            }
        }
    }
}

fn scaled(number: u64, base: u64, units: [&'static str; 7]) -> String {
    let (mut number, mut unit) = (number, 0);
    while number != 0 && number.is_multiple_of(base) && unit + 1 < units.len() {
        number /= base;
        unit += 1;
    }
    format!("{number}{}", units[unit])
}

/// The number in the largest binary unit in which it is whole: `64Mi`, `61248Ki`, `1000`. For
/// amounts in bytes.
#[must_use]
pub fn binary(number: u64) -> String {
    scaled(number, 1024, BINARY)
}

/// The number in the largest decimal unit in which it is whole: `50k`. For counts.
#[must_use]
pub fn decimal(number: u64) -> String {
    scaled(number, 1000, DECIMAL)
}

/// The shorter of the two: how a round number was most likely written.
#[must_use]
pub fn shortest(number: u64) -> String {
    let (binary, decimal) = (binary(number), decimal(number));
    if decimal.len() < binary.len() { decimal } else { binary }
}

/// A measured value of a signal: bytes in binary units, other values as a count.
#[must_use]
pub fn measured(signal: Signal, number: u64) -> String {
    match signal {
        Signal::MemoryAvailable
        | Signal::AllocatableMemoryAvailable
        | Signal::NodefsAvailable
        | Signal::ImagefsAvailable
        | Signal::ContainerfsAvailable => binary(number),
        Signal::NodefsInodesFree
        | Signal::ImagefsInodesFree
        | Signal::ContainerfsInodesFree
        | Signal::PidAvailable => decimal(number),
    }
}
