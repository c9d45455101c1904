//! Headers survive their encoding, and all others are refused.

use super::*;
use proptest::prelude::*;

/// Any message, with a text of at most [`MAX_TEXT_BYTES`] bytes.
pub(crate) fn any_message() -> impl Strategy<Value = Message> {
    let numbers = (any::<bool>(), any::<u32>(), any::<u32>(), any::<u64>(), 0..=MAX_TEXT_BYTES as u64, any::<u64>());
    (0..18u8, prop_oneof![Just(0u8), 1..=LAST_KIND], any::<bool>(), numbers).prop_map(
        |(kind, space, more, (flag, first, request, slot, bytes, offset))| {
            let collective = space != 0;
            let space = if collective { Space::collective(space, offset as u32 >> 8) } else { Space::USER };
            let fingerprint = if collective { u64::from(request) << 32 | u64::from(first) } else { first.into() };
            let envelope = Envelope { space, slot, fingerprint, bytes, more: collective && more };
            match kind {
                0 => Message::Data { envelope, announced: flag, placed: offset as u32 },
                1 => Message::Announce { envelope, number: offset as u32 },
                2 => Message::Grant { space, slot, announcement: first, key: request },
                3 => Message::Write { slot, offset, bytes },
                15 => Message::Written { slot, offset, bytes },
                16 => Message::Bound { slot, region: first },
                4 => Message::Put { request, region: first, offset, bytes },
                5 => Message::PutDone { request, refused: flag },
                6 => Message::Get { request, region: first, offset, bytes },
                7 => Message::GetDone { request, refused: flag, bytes },
                8 => {
                    let cause = [Cause::Failure, Cause::Mismatch, Cause::Abort][request as usize % 3];
                    Message::Abort { cause, culprit: first, bytes }
                }
                9 => Message::Goodbye,
                10 => Message::Query { slot, fingerprint: u64::from(request) << 32 | u64::from(first) },
                11 => Message::Offer { envelope, key: request },
                12 => Message::Taken { key: request },
                13 => Message::Replacement { envelope, key: request },
                17 => Message::Agreement { bytes },
                _ => Message::Reply { waiting: flag, instead: u64::from(request) << 32 | u64::from(first), bytes },
            }
        },
    )
}

proptest! {
    #[test]
    fn any_message_survives_encoding(message in any_message(), connection: u32) {
        prop_assert_eq!(Message::decode(&message.encode(connection), connection).unwrap(), message);
        prop_assert!(Message::decode(&message.encode(connection), connection ^ 1).is_err());
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(kind in 0..20u8, bits: [u8; 32], flags in 0..10u8, rest: [u8; 5], zeros: [bool; 5]) {
        let mut wire = [0; HEADER_BYTES];
        wire[..4].copy_from_slice(&[kind, VERSION, flags & 1, flags >> 1]);
        wire[8..].copy_from_slice(&bits);
        wire[4..8].copy_from_slice(&rest[..4]);
        for (range, _) in [8..16, 16..24, 24..32, 32..36, 36..40].into_iter().zip(zeros).filter(|(_, zero)| *zero) {
            wire[range].fill(0);
        }
        wire[39] &= if rest[4] & 1 == 0 { 0 } else { 0xff };
        let connection = u32::from_le_bytes(wire[4..8].try_into().unwrap());
        if let Ok(message) = Message::decode(&wire, connection) {
            prop_assert_eq!(message.encode(connection), wire);
            prop_assert!(message.payload() <= isize::MAX as usize);
        }
    }
}

#[test]
fn invalid_headers_are_refused() {
    let refused = |change: &dyn Fn(&mut [u8; HEADER_BYTES]), message: Message| {
        let mut wire = message.encode(7);
        change(&mut wire);
        Message::decode(&wire, 7).unwrap_err().message().to_owned()
    };
    let envelope = Envelope { space: Space::USER, slot: 1, fingerprint: 0, bytes: 2, more: false };
    let text = refused(&|wire| wire[1] = VERSION + 1, Message::Announce { envelope, number: 0 });
    assert!(text.contains(&format!("version {} instead of {VERSION}", VERSION + 1)), "{text}");
    let text = refused(&|wire| wire[31] = 0x80, Message::Announce { envelope, number: 0 });
    assert!(text.contains("9223372036854775810 bytes"), "{text}");
    let text = refused(&|wire| wire[25] = 0x20, Message::Abort { cause: Cause::Mismatch, culprit: 7, bytes: 0 });
    assert!(text.contains("a text of 8192 bytes"), "{text}");
    let text = refused(&|wire| wire[3] = 3, Message::Abort { cause: Cause::Abort, culprit: 7, bytes: 0 });
    assert!(text.contains("cause 3"), "{text}");
    let text = refused(&|wire| wire[39] = 1, Message::Goodbye);
    assert!(text.contains("Goodbye with unused bytes that are not zero"), "{text}");
    assert!(refused(&|wire| wire[0] = 19, Message::Goodbye).contains("kind 19"));
    // Messages of unbound buffers have no channel, a channel has 24 bits, and a query has no space.
    let zeros = "unused bytes that are not zero";
    let collective = Envelope { space: Space::collective(LAST_KIND, 0xff_ffff), ..envelope };
    assert!(
        refused(&|wire| wire[2] = LAST_KIND + 1, Message::Announce { envelope: collective, number: 0 })
            .contains("space 37")
    );
    assert!(refused(&|wire| wire[36] = 1, Message::Announce { envelope, number: 0 }).contains(zeros));
    assert!(refused(&|wire| wire[39] = 1, Message::Announce { envelope: collective, number: 0 }).contains(zeros));
    assert!(refused(&|wire| wire[2] = 1, Message::Query { slot: 1, fingerprint: 2 }).contains(zeros));
    assert!(refused(&|wire| wire[3] = 4, Message::Announce { envelope, number: 0 }).contains("flag 4"));
    assert!(
        refused(&|wire| wire[3] = 2, Message::Announce { envelope, number: 0 })
            .contains("the flag for more segments where there is no collective")
    );
    assert!(refused(&|wire| wire[3] = 2, Message::Goodbye).contains("Goodbye with unused bytes that are not zero"));
    // Only a data message can have been announced.
    assert!(
        refused(&|wire| wire[3] = 1, Message::Announce { envelope, number: 0 })
            .contains("unused bytes that are not zero")
    );
}
