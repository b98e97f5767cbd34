//! systemd's private socket, as zbus takes it.
//!
//! There is no bus behind it that gives names, and systemd signs its messages with its well-known
//! one, `org.freedesktop.systemd1`. zbus takes a sender for a unique name, which begins with a
//! colon, and drops the connection over anything else. So a colon is inserted before zbus sees the
//! message, and the last letter is removed. The length stays the same, and the name is not used.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use zbus::{
    connection::socket::{ReadHalf, Socket, Split, WriteHalf},
    export::async_trait::async_trait,
};

/// What systemd signs with, and what zbus gets to see.
pub(super) const SIGNATURE: &[u8; 24] = b"org.freedesktop.systemd1";
pub(super) const NAME: &[u8; 24] = b":org.freedesktop.systemd";

/// The part of a message that tells how long it is.
const PRIMARY_HEADER: usize = 16;
/// What the protocol allows.
const LONGEST: usize = 128 << 20;
const CHUNK: usize = 4096;

/// A connection to systemd's private socket.
#[derive(Debug)]
pub(super) struct PrivateSocket(pub(super) UnixStream);

#[derive(Debug)]
pub(super) struct Reader {
    stream: OwnedReadHalf,
    frames: Frames,
}

#[derive(Debug)]
pub(super) struct Writer(OwnedWriteHalf);

impl Socket for PrivateSocket {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let (read, write) = self.0.into_split();
        Split::new(Reader { stream: read, frames: Frames::default() }, Writer(write))
    }
}

#[async_trait]
impl ReadHalf for Reader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        loop {
            let taken = self.frames.take(buffer);
            if taken > 0 {
                return Ok((taken, Vec::new()));
            }
            let mut chunk = [0; CHUNK];
            let read = self.stream.read(&mut chunk).await?;
            if read == 0 {
                return Ok((0, Vec::new()));
            }
            self.frames.add(&chunk[..read])?;
        }
    }
}

#[async_trait]
impl WriteHalf for Writer {
    async fn sendmsg(&mut self, buffer: &[u8], _fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        self.0.write(buffer).await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.0.shutdown().await
    }
}

/// What came in: lines while the two sides get to know each other, then messages, which are given
/// out when they are whole.
#[derive(Debug, Default)]
struct Frames {
    raw: Vec<u8>,
    ready: Vec<u8>,
}

impl Frames {
    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.raw.extend_from_slice(bytes);
        while let Some(length) = frame(&self.raw)? {
            let mut message: Vec<u8> = self.raw.drain(..length).collect();
            rename_sender(&mut message);
            self.ready.extend(message);
        }
        Ok(())
    }

    fn take(&mut self, buffer: &mut [u8]) -> usize {
        let count = buffer.len().min(self.ready.len());
        for (to, from) in buffer.iter_mut().zip(self.ready.drain(..count)) {
            *to = from;
        }
        count
    }
}

/// How long the first line or message is; `None` while it is not whole.
fn frame(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(first) = bytes.first() else { return Ok(None) };
    // A message begins with its byte order, and no line begins with these letters.
    let (b'l' | b'B') = first else {
        return Ok(bytes.iter().position(|byte| *byte == b'\n').map(|end| end + 1));
    };
    let (Some(body), Some(fields)) = (number_at(bytes, 4), number_at(bytes, 12)) else {
        return Ok(None);
    };
    let length = PRIMARY_HEADER.saturating_add(fields).next_multiple_of(8).saturating_add(body);
    if length > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of more than 128 MiB"));
    }
    Ok((bytes.len() >= length).then_some(length))
}

fn rename_sender(message: &mut [u8]) {
    let end = number_at(message, 12).map_or(0, |fields| PRIMARY_HEADER.saturating_add(fields));
    let Some(fields) = message.get_mut(PRIMARY_HEADER..end) else { return };
    // The field's number, the signature `s`, and (either byte order) the length.
    let little = [&[7, 1, b's', 0, 24, 0, 0, 0], &SIGNATURE[..]].concat();
    let big = [&[7, 1, b's', 0, 0, 0, 0, 24], &SIGNATURE[..]].concat();
    for at in 0..fields.len() {
        let rest = &mut fields[at..];
        if rest.starts_with(&little) || rest.starts_with(&big) {
            rest[8..8 + NAME.len()].copy_from_slice(NAME);
            return;
        }
    }
}

/// A length in the byte order that the message says.
fn number_at(message: &[u8], at: usize) -> Option<usize> {
    let bytes = message.get(at..at + 4)?.try_into().ok()?;
    let number =
        if message[0] == b'B' { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
    usize::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbus::{Message, wire::Endian};

    fn signed(endian: Endian) -> Vec<u8> {
        let message = Message::signal("/org", "org.freedesktop.systemd1.Manager", "UnitNew")
            .endian(endian)
            .sender(std::str::from_utf8(NAME).unwrap())
            .build(&("org.freedesktop.systemd1",))
            .unwrap();
        let bytes: &[u8] = message.data();
        let at = bytes.windows(NAME.len()).position(|w| w == NAME).unwrap();
        [&bytes[..at], &SIGNATURE[..], &bytes[at + NAME.len()..]].concat()
    }

    #[test]
    fn only_the_sender_is_renamed_however_the_bytes_arrive() {
        for endian in [Endian::Little, Endian::Big] {
            let message = signed(endian);
            let sent = [b"OK 0123\r\n".to_vec(), message.clone(), message.clone()].concat();
            for size in [1, 7, 64, sent.len()] {
                let mut frames = Frames::default();
                let mut got = Vec::new();
                for chunk in sent.chunks(size) {
                    frames.add(chunk).unwrap();
                    let mut buffer = [0; 5];
                    while let count @ 1.. = frames.take(&mut buffer) {
                        got.extend_from_slice(&buffer[..count]);
                    }
                }
                assert_eq!(got.len(), sent.len());
                let count = |name: &[u8]| got.windows(name.len()).filter(|w| *w == name).count();
                // In each message once as the sender and once as a word of its own.
                assert_eq!((count(NAME), count(b"org.freedesktop.systemd1\0")), (2, 2));
            }
        }
    }

    #[test]
    fn nonsense_is_neither_kept_nor_waited_for() {
        let mut endless = b"l\x01\0\x01\xff\xff\xff\xff\0\0\0\0\xff\xff\xff\xff".to_vec();
        assert!(frame(&endless).is_err());
        endless[4..8].fill(0);
        endless[12..16].fill(0);
        assert_eq!(frame(&endless).unwrap(), Some(16));
        assert_eq!(frame(b"REJECTED").unwrap(), None);
        assert_eq!(frame(b"").unwrap(), None);
        rename_sender(&mut endless);
        rename_sender(&mut []);
    }
}
