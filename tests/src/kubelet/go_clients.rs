//! Lets Go programs call the kubelet's sockets. grpc-go sends the socket's path, percent-encoded, as
//! `:authority`. The kubelet, a Go program too, accepts that, but h2 resets the stream as malformed. This
//! code replaces the field on its way, and nothing else.
//!
//! HTTP/2's frames are defined in RFC 9113, 4.1 and 6.2; header fields in RFC 7541, 5 and 6.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;

/// The connection preface of a client (RFC 9113, 3.4).
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// Bytes of a frame's header: length, type, flags, stream.
const HEAD: usize = 9;

/// The frame type of a request's headers, and its flags for padding and priority.
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Index of `:authority` in HPACK's static table.
const AUTHORITY: usize = 1;

/// The authority that the server gets.
const NAME: &[u8] = b"localhost";

/// Buffer size of one direction, in bytes.
const ROOM: usize = 64 * 1024;

/// The connection as the server accepts it.
pub(super) fn accept(stream: UnixStream) -> DuplexStream {
    let (near, far) = duplex(ROOM);
    let (from_client, mut to_client) = stream.into_split();
    let (mut from_server, to_server) = tokio::io::split(far);
    tokio::spawn(async move {
        // A closed side ends the connection, which is not an error.
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
    });
    tokio::spawn(async move {
        let _ = forward(from_client, to_server).await;
    });
    near
}

async fn forward(
    mut client: OwnedReadHalf,
    mut server: tokio::io::WriteHalf<DuplexStream>,
) -> std::io::Result<()> {
    let mut preface = [0; PREFACE];
    client.read_exact(&mut preface).await?;
    server.write_all(&preface).await?;
    loop {
        let mut head = [0; HEAD];
        if client.read_exact(&mut head).await.is_err() {
            return server.shutdown().await;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut body = vec![0; usize::try_from(length).unwrap_or_default()];
        client.read_exact(&mut body).await?;
        let (kind, flags) = (head[3], head[4]);
        if kind == HEADERS && flags & PADDED == 0 {
            let fields = if flags & PRIORITY == 0 { 0 } else { 5 };
            if let Some(renamed) = body.get(fields..).and_then(rename) {
                body.splice(fields.., renamed);
                head[..3].copy_from_slice(&u32::try_from(body.len()).unwrap_or(length).to_be_bytes()[1..]);
            }
        }
        server.write_all(&head).await?;
        server.write_all(&body).await?;
    }
}

/// The header fields with another authority; `None` if they have no literal one. Later requests refer to it
/// by its index in the dynamic table, which has the new one then.
fn rename(fields: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0;
    while at < fields.len() {
        let first = *fields.get(at)?;
        // An indexed field, a change of the table's size, or a literal with or without indexing.
        let (bits, is_literal) = match first {
            0x80.. => (7, false),
            0x40..0x80 => (6, true),
            0x20..0x40 => (5, false),
            _ => (4, true),
        };
        let (index, mut next) = integer(fields, at, bits)?;
        if is_literal {
            if index == 0 {
                next = after_text(fields, next)?;
            }
            let value = next;
            next = after_text(fields, value)?;
            if index == AUTHORITY {
                let length = u8::try_from(NAME.len()).ok()?;
                return Some([&fields[..value], &[length], NAME, &fields[next..]].concat());
            }
        }
        at = next;
    }
    None
}

/// An integer that begins in the low bits of a byte, and the position after it.
fn integer(fields: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
    let most = (1usize << bits) - 1;
    let mut value = usize::from(*fields.get(at)?) & most;
    let mut next = at + 1;
    if value < most {
        return Some((value, next));
    }
    let mut shift = 0;
    loop {
        let byte = *fields.get(next)?;
        value += usize::from(byte & 0x7F).checked_shl(shift)?;
        (next, shift) = (next + 1, shift + 7);
        if byte & 0x80 == 0 {
            return Some((value, next));
        }
    }
}

/// The position after a text, Huffman-coded or plain.
fn after_text(fields: &[u8], at: usize) -> Option<usize> {
    let (length, start) = integer(fields, at, 7)?;
    let end = start.checked_add(length)?;
    (end <= fields.len()).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_authority_is_replaced() {
        // RFC 7541, C.3.1: GET, http, /, www.example.com; here a literal with a new name follows.
        let before = [
            &[0x82, 0x86, 0x84, 0x41, 0x0F][..],
            b"www.example.com",
            &[0x00, 0x02, b't', b'e', 0x08],
            b"trailers",
        ];
        let after = [&[0x82, 0x86, 0x84, 0x41, 0x09][..], NAME, &[0x00, 0x02, b't', b'e', 0x08], b"trailers"];
        assert_eq!(rename(&before.concat()), Some(after.concat()));
        // C.4.1 is the same in Huffman code.
        let huffman = [&[0x82, 0x86, 0x84, 0x41, 0x8C][..], &[0xF1; 12]].concat();
        assert_eq!(rename(&huffman), Some([&[0x82, 0x86, 0x84, 0x41, 0x09][..], NAME].concat()));
    }

    #[test]
    fn what_names_no_authority_or_is_cut_short_is_left_as_it_is() {
        // C.3.2: the authority by its index, and another field.
        let indexed = [&[0x82, 0x86, 0x84, 0xBE, 0x58, 0x08][..], b"no-cache"].concat();
        assert_eq!(rename(&indexed), None);
        assert_eq!(rename(&[0x41, 0x0F, b'w']), None);
        assert_eq!(rename(&[]), None);
    }

    #[test]
    fn long_texts_have_their_length_in_several_bytes() {
        assert_eq!(integer(&[0x1F, 0x9A, 0x0A], 0, 5), Some((1337, 3)), "RFC 7541, C.1.2");
        let long = [&[0x41, 0x7F, 0x80, 0x01][..], &[b'%'; 255]].concat();
        assert_eq!(rename(&long), Some([&[0x41, 0x09][..], NAME].concat()));
    }
}
