use crate::socket::{FRAGMENT_LIMIT, fragments};
use crate::wire::{FromAgent, Hello, from_agent::Message};
use prost::Message as _;
use tokio_tungstenite::tungstenite::Message as Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

/// The fragments of a Hello whose version has this many bytes.
fn hello_fragments(bytes: usize) -> (FromAgent, Vec<Frame>) {
    let hello = Hello { version: "v".repeat(bytes), ..Hello::default() };
    let message = FromAgent { message: Some(Message::Hello(hello)) };
    let frames = fragments(&message).collect();
    (message, frames)
}

#[test]
fn a_message_is_sent_in_fragments_of_bounded_size() {
    for (bytes, count) in [(0, 1), (FRAGMENT_LIMIT / 2, 1), (FRAGMENT_LIMIT, 2), (10 * FRAGMENT_LIMIT, 11)] {
        let (message, frames) = hello_fragments(bytes);
        assert_eq!(frames.len(), count, "{bytes} bytes");
        let mut joined = Vec::new();
        for (number, frame) in frames.into_iter().enumerate() {
            let Frame::Frame(frame) = frame else { panic!("fragments are frames") };
            let data = if number == 0 { Data::Binary } else { Data::Continue };
            assert_eq!(frame.header().opcode, OpCode::Data(data));
            assert_eq!(frame.header().is_final, number + 1 == count);
            assert!(frame.payload().len() <= FRAGMENT_LIMIT);
            joined.extend_from_slice(frame.payload());
        }
        assert_eq!(FromAgent::decode(&*joined).unwrap(), message);
    }
}
