//! gzip: a file of one member, RFC 1952, around the deflate of `miniz_oxide`.
//!
//! The crates that write gzip bring its reading and tables for speed with them, 33 KB of program
//! for these few lines.

use miniz_oxide::{
    MZError, MZFlush, MZStatus,
    deflate::{
        core::{CompressorOxide, create_comp_flags_from_zip_params},
        stream::deflate,
    },
};
use std::io::{self, Read, Write};

/// Block in which the source is read and the target is written.
const BLOCK: usize = 64 << 10;
/// The fastest: a processor that is busy counts for more than the last tenth of the disk.
const LEVEL: i32 = 1;
/// A negative number of window bits asks for deflate without a frame.
const RAW: i32 = -15;
/// Magic number, deflate, no flags, no time, fastest algorithm, Unix.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 3];
/// The remainders of CRC-32 (RFC 1952, section 8), one for each byte.
const REMAINDERS: [u32; 256] = remainders();

/// Compresses everything in `source`. Returns its size in bytes.
///
/// # Errors
/// When one of them can't be read or written.
pub(super) fn compress(source: &mut impl Read, target: &mut impl Write) -> io::Result<u64> {
    let mut packer =
        Box::new(CompressorOxide::new(create_comp_flags_from_zip_params(LEVEL, RAW, 0)));
    let (mut block, mut out) = (vec![0; BLOCK], vec![0; BLOCK]);
    let (mut size, mut crc) = (0_u64, u32::MAX);
    target.write_all(&HEADER)?;
    loop {
        let length = source.read(&mut block)?;
        let mut rest = &block[..length];
        crc = rest.iter().fold(crc, |crc, byte| {
            let index = (crc ^ u32::from(*byte)) & 0xff;
            (crc >> 8) ^ REMAINDERS[index as usize]
        });
        size += length as u64;
        let flush = if length == 0 { MZFlush::Finish } else { MZFlush::None };
        loop {
            let step = deflate(&mut packer, rest, &mut out, flush);
            target.write_all(&out[..step.bytes_written])?;
            rest = &rest[step.bytes_consumed..];
            match step.status {
                Ok(MZStatus::StreamEnd) => {
                    // The size modulo 2^32.
                    #[allow(clippy::cast_possible_truncation, reason = "as the format has it")]
                    let trailer = [(!crc).to_le_bytes(), (size as u32).to_le_bytes()];
                    target.write_all(trailer.as_flattened())?;
                    return Ok(size);
                }
                // All is taken; `Buf` says that there was nothing more to do.
                Ok(_) | Err(MZError::Buf) if rest.is_empty() && length > 0 => break,
                Ok(_) => {}
                Err(error) => return Err(io::Error::other(format!("deflate: {error:?}"))),
            }
        }
    }
}

const fn remainders() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte: u32 = 0;
    while byte < 256 {
        let mut remainder = byte;
        let mut bit = 0;
        while bit < 8 {
            let carry = remainder & 1;
            remainder >>= 1;
            if carry == 1 {
                remainder ^= 0xedb8_8320;
            }
            bit += 1;
        }
        table[byte as usize] = remainder;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;

    #[test]
    fn another_program_reads_what_is_written() {
        let noise = |length: usize| {
            let mut state = 1_u32;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            std::iter::repeat_with(&mut next).take(length).collect::<Vec<u8>>()
        };
        let text = "2026-11-24T12:00:00Z stdout F line\n".repeat(20_000).into_bytes();
        for source in [vec![], b"a".to_vec(), text, noise(BLOCK), noise(3 * BLOCK + 7)] {
            let mut packed = Vec::new();
            let size = compress(&mut source.as_slice(), &mut packed).unwrap();
            assert_eq!(size, source.len() as u64);
            let mut unpacked = Vec::new();
            GzDecoder::new(packed.as_slice()).read_to_end(&mut unpacked).unwrap();
            assert!(unpacked == source, "{} bytes", source.len());
            assert!(packed.len() < source.len() + source.len() / 100 + 100, "{}", packed.len());
        }
    }
}
