//! Digests as text.

use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// The first 128 bits of the SHA-256, as 32 lowercase hex digits: the identity of data that has
/// no name.
#[must_use]
pub fn short_digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes)[..16])
}

/// Two lowercase hex digits for each byte.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a String can't fail.
        write!(hex, "{byte:02x}").ok();
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_have_32_digits() {
        assert_eq!(hex(&[0, 10, 255]), "000aff");
        // The first half of the SHA-256 of nothing, as `sha256sum </dev/null` prints it.
        assert_eq!(short_digest(b""), "e3b0c44298fc1c149afbf4c8996fb924");
    }
}
