//! The client's side of SPDY/3.1, as much as sessions with the streaming server of a container
//! runtime need. The runtimes of Kubernetes all speak it, and only with it can a client end standard
//! input (over WebSocket, containerd before 2 has no way to tell).
//!
//! The frames are those of the SPDY Protocol draft 3.1. Header blocks are compressed with zlib in the
//! protocol; the blocks here are zlib streams whose parts are stored as they are. What the server
//! says in headers is not needed, so nothing is decompressed.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _};

const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FLAG_FIN: u8 = 1;
/// Bit 15 of the first two bytes: not data.
const CONTROL: u16 = 0x8000;
const HEAD: usize = 8;
/// The largest frame that is read, in bytes. Servers send what fits into a buffer of 32 KiB.
const MAX_FRAME: usize = 1 << 20;
/// The beginning of a zlib stream with a preset dictionary: that of SPDY/3, by its Adler-32.
const ZLIB_HEAD: [u8; 6] = [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];
/// An empty stored block, at which the reader gives out what it has.
const FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// A stream of a session. Those that the client begins have odd numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamId(u32);

/// Makes frames.
#[derive(Debug, Default)]
pub(super) struct Sender {
    streams: u32,
}

impl Sender {
    /// The frame that begins a stream with these headers.
    pub(super) fn begin(&mut self, headers: &[(&str, &str)]) -> (StreamId, Vec<u8>) {
        let id = 2 * self.streams + 1;
        let mut block = Vec::new();
        put_number(&mut block, headers.len());
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            put_number(&mut block, text.len());
            block.extend_from_slice(text.as_bytes());
        }
        let mut body = Vec::new();
        body.extend_from_slice(&id.to_be_bytes());
        // No stream that it belongs to, the highest priority, no slot.
        body.extend_from_slice(&[0; 6]);
        if self.streams == 0 {
            body.extend_from_slice(&ZLIB_HEAD);
        }
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        body.push(0);
        body.extend_from_slice(&length.to_le_bytes());
        body.extend_from_slice(&(!length).to_le_bytes());
        body.extend_from_slice(&block[..length.into()]);
        body.extend_from_slice(&FLUSH);
        self.streams += 1;
        (StreamId(id), control(SYN_STREAM, &body))
    }
}

/// A frame with data; the last one of its stream if `last`.
pub(super) fn data(id: StreamId, bytes: &[u8], last: bool) -> Vec<u8> {
    let mut frame = id.0.to_be_bytes().to_vec();
    put_length(&mut frame, if last { FLAG_FIN } else { 0 }, bytes.len());
    frame.extend_from_slice(bytes);
    frame
}

fn control(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = (CONTROL | VERSION).to_be_bytes().to_vec();
    frame.extend_from_slice(&kind.to_be_bytes());
    put_length(&mut frame, 0, body.len());
    frame.extend_from_slice(body);
    frame
}

fn put_number(to: &mut Vec<u8>, number: usize) {
    to.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes());
}

/// Flags, and a length of 24 bits.
fn put_length(to: &mut Vec<u8>, flags: u8, length: usize) {
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    to.extend_from_slice(&[flags, length[1], length[2], length[3]]);
}

/// What the server sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Data {
        id: StreamId,
        bytes: Vec<u8>,
        /// Nothing more comes on this stream.
        last: bool,
    },
    /// The stream is over.
    Reset(StreamId),
    /// To be sent back as it is.
    Ping(Vec<u8>),
    /// The server is about to close the connection.
    GoAway,
    /// Of no interest.
    Other,
}

/// Reads frames.
#[derive(Debug)]
pub(super) struct Frames<R> {
    from: R,
    read: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, read: Vec::new() }
    }

    /// The next frame; `None` at the end of the connection.
    ///
    /// # Errors
    /// When the connection breaks, or sends what is no frame.
    ///
    /// # Cancel safety
    /// What was read is kept.
    pub(super) async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(whole) = self.whole()? {
                let frame: Vec<u8> = self.read.drain(..whole).collect();
                return Ok(Some(parsed(frame)));
            }
            if self.from.read_buf(&mut self.read).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The length of the first frame, if all of it was read.
    fn whole(&self) -> io::Result<Option<usize>> {
        let Some(head) = self.read.first_chunk::<HEAD>() else { return Ok(None) };
        let length = u32::from_be_bytes([0, head[5], head[6], head[7]]);
        let whole = HEAD + usize::try_from(length).unwrap_or(usize::MAX);
        if whole > MAX_FRAME {
            return Err(io::Error::other("the container runtime sent a frame that is too large"));
        }
        Ok((self.read.len() >= whole).then_some(whole))
    }
}

fn parsed(frame: Vec<u8>) -> Frame {
    let number = |at: usize| {
        let bytes = frame.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        bytes.map_or(0, u32::from_be_bytes) & 0x7fff_ffff
    };
    let first = u16::from_be_bytes([frame[0], frame[1]]);
    if first & CONTROL == 0 {
        let (id, last) = (StreamId(number(0)), frame[4] & FLAG_FIN != 0);
        return Frame::Data { id, bytes: frame[HEAD..].to_vec(), last };
    }
    match u16::from_be_bytes([frame[2], frame[3]]) {
        RST_STREAM => Frame::Reset(StreamId(number(HEAD))),
        PING => Frame::Ping(frame),
        GOAWAY => Frame::GoAway,
        _ => Frame::Other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use tokio::io::AsyncWriteExt as _;

    #[test]
    fn a_stream_begins_with_its_headers() {
        let mut sender = Sender::default();
        let (first, frame) = sender.begin(&[("streamtype", "stdin")]);
        let (second, again) = sender.begin(&[("streamtype", "stdout")]);
        assert_eq!((first, second), (StreamId(1), StreamId(3)));
        let block = 4 + 4 + 10 + 4 + 5;
        let length = 4 + 6 + 6 + 5 + block + 5;
        assert_eq!(&frame[..8], &[0x80, 3, 0, 1, 0, 0, 0, length]);
        assert_eq!(&frame[8..18], &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&frame[18..24], &ZLIB_HEAD);
        // A stored block: its length, and the complement.
        assert_eq!(&frame[24..29], &[0, block, 0, !block, 0xff]);
        assert_eq!(&frame[29..33], &[0, 0, 0, 1]);
        assert_eq!(&frame[37..47], b"streamtype");
        assert!(frame.ends_with(&FLUSH) && frame.len() == 8 + length as usize);
        assert_eq!(&again[18..20], &[0, block + 1], "the zlib stream begins once");
    }

    #[tokio::test]
    async fn frames_are_read_in_any_pieces() {
        let mut sent = data(StreamId(3), b"hello", false);
        sent.extend(control(2, &[0; 10]));
        sent.extend(control(PING, &[0, 0, 0, 2]));
        sent.extend(data(StreamId(3), b"", true));
        sent.extend(control(RST_STREAM, &[0, 0, 0, 5, 0, 0, 0, 1]));
        sent.extend(control(GOAWAY, &[0; 8]));
        let (mut near, far) = tokio::io::duplex(3);
        let writing = async {
            near.write_all(&sent).await.unwrap();
            drop(near);
        };
        let reading = async {
            let mut frames = Frames::new(far);
            let mut found = Vec::new();
            while let Some(frame) = frames.next().await.unwrap() {
                found.push(frame);
            }
            found
        };
        let ((), found) = tokio::join!(writing, reading);
        let id = StreamId(3);
        assert_eq!(
            found,
            [
                Frame::Data { id, bytes: b"hello".to_vec(), last: false },
                Frame::Other,
                Frame::Ping(control(PING, &[0, 0, 0, 2])),
                Frame::Data { id, bytes: Vec::new(), last: true },
                Frame::Reset(StreamId(5)),
                Frame::GoAway,
            ]
        );
        let huge = [0, 0, 0, 1, 0, 0xff, 0xff, 0xff];
        Frames::new(&huge[..]).next().await.unwrap_err();
    }
}
