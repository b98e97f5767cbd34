//! Amounts of what may run short.

use crate::model::Signal;

/// Bytes with a unit, everything else as a number.
pub(crate) fn shown(signal: Signal, amount: u64) -> String {
    if !matches!(signal.resource(), "memory" | "ephemeral-storage") {
        return amount.to_string();
    }
    bytes(amount)
}

/// `94.0 MiB`, in the largest unit that fits.
pub(crate) fn bytes(amount: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if amount < 1024 {
        return format!("{amount} B");
    }
    // Tenths of the largest unit that fits.
    let mut tenths = amount.saturating_mul(10) / 1024;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS.get(unit).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_the_largest_unit_that_fits() {
        for (amount, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1023.9 KiB"),
            (104_857_600, "100.0 MiB"),
            (1_610_612_736, "1.5 GiB"),
        ] {
            assert_eq!(shown(Signal::MemoryAvailable, amount), expected);
        }
        assert_eq!(shown(Signal::NodefsInodesFree, 4096), "4096");
        assert_eq!(shown(Signal::PidAvailable, 4096), "4096");
    }
}
