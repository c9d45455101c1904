//! Element types and reduction operations, by the field's names.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};
use crate::nearest::hint;

pub use crate::rank::Rank;

/// Labels a point-to-point message: a receive matches a send with the same slot.
pub type Slot = u64;

/// Keeps slots apart: those of callers' messages, and those of each kind of collective, whose slots are tags. Of
/// collectives it also holds the channel: which message between the two ranks it is. So it fits into 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Space(u32);

impl Space {
    /// Messages of unbound buffers.
    pub const USER: Self = Self(0);

    /// Messages of collectives of a kind, which is not 0, on a channel below 2^24; see
    /// [`kind`](crate::wire::fingerprint::kind).
    pub const fn collective(kind: u8, channel: u32) -> Self {
        Self(channel << 8 | kind as u32)
    }

    /// Whether these are messages of unbound buffers.
    pub const fn is_user(self) -> bool {
        self.0 == 0
    }

    /// The kind of collective; 0 for messages of unbound buffers.
    pub const fn kind(self) -> u8 {
        self.0 as u8
    }

    /// The channel; 0 for messages of unbound buffers.
    pub const fn channel(self) -> u32 {
        self.0 >> 8
    }

    /// Where a message in `slot` goes, for errors.
    pub fn describe(self, slot: Slot) -> String {
        if self.is_user() {
            format!("in slot {slot:#x}")
        } else {
            format!("as message {} of tag {slot}", self.channel())
        }
    }
}

macro_rules! named_enum {
    ($(#[$meta:meta])* $name:ident, $what:literal, { $($(#[$vmeta:meta])* $variant:ident = $value:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum $name { $($(#[$vmeta])* $variant = $value,)* }

        impl $name {
            /// Every value, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name, as the tool and error messages print it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        // `try_from` takes the number for the place in the list.
        $(const _: () = assert!($name::ALL[$value] as u32 == $value);)*

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.pad(self.name()) }
        }

        impl TryFrom<u32> for $name {
            type Error = Error;
            fn try_from(value: u32) -> Result<Self, Error> {
                Self::ALL.get(value as usize).copied().ok_or_else(|| {
                    Error::new(ErrorKind::InvalidArgument, format!(concat!("no ", $what, " has the number {}"), value))
                })
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self, Error> {
                Self::ALL.iter().copied().find(|v| v.name() == text).ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|v| v.name()).collect();
                    Error::new(ErrorKind::InvalidArgument, format!(concat!("no ", $what, " is named {:?}{}; there are {}"), text, hint(text, names.iter().copied()), names.join(", ")))
                })
            }
        }
    };
}

named_enum! {
    /// Type of one element. The numbers are the C ABI's and never change.
    DataType, "data type", {
        /// Signed 8-bit integer.
        Int8 = 0, "int8";
        /// Unsigned 8-bit integer.
        Uint8 = 1, "uint8";
        /// Signed 16-bit integer.
        Int16 = 2, "int16";
        /// Unsigned 16-bit integer.
        Uint16 = 3, "uint16";
        /// Signed 32-bit integer.
        Int32 = 4, "int32";
        /// Unsigned 32-bit integer.
        Uint32 = 5, "uint32";
        /// Signed 64-bit integer.
        Int64 = 6, "int64";
        /// Unsigned 64-bit integer.
        Uint64 = 7, "uint64";
        /// IEEE 754 binary16.
        Float16 = 8, "float16";
        /// The upper half of a binary32.
        Bfloat16 = 9, "bfloat16";
        /// IEEE 754 binary32.
        Float32 = 10, "float32";
        /// IEEE 754 binary64.
        Float64 = 11, "float64";
        /// Two binary32: real, imaginary.
        Complex64 = 12, "complex64";
        /// Two binary64: real, imaginary.
        Complex128 = 13, "complex128";
        /// One byte: zero is false, anything else is true; results are 0 or 1.
        Bool = 14, "bool";
    }
}

impl DataType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 | Self::Bool => 1,
            Self::Int16 | Self::Uint16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 | Self::Complex64 => 8,
            Self::Complex128 => 16,
        }
    }

    /// Alignment that C requires of a pointer to such elements, in bytes.
    pub const fn align(self) -> usize {
        match self {
            Self::Complex64 => 4,
            Self::Complex128 => 8,
            other => other.size(),
        }
    }
}

/// The type of a call's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// One that the library knows.
    Known(DataType),
    /// A type of the caller's, which only functions of the caller's combine: bytes of one element, at least 1.
    Opaque(usize),
}

impl ElementType {
    /// The numbers of [`ElementType::code`] from this one on stand for a caller's type: the size is added to it.
    const OPAQUE: u64 = 1 << 32;

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::Known(dtype) => dtype.size(),
            Self::Opaque(bytes) => bytes,
        }
    }

    /// Alignment that buffers must have, in bytes. That of a caller's type is unknown.
    pub const fn align(self) -> usize {
        match self {
            Self::Known(dtype) => dtype.align(),
            Self::Opaque(_) => 1,
        }
    }

    /// A number that no other type has.
    pub const fn code(self) -> u64 {
        match self {
            Self::Known(dtype) => dtype as u64,
            Self::Opaque(bytes) => Self::OPAQUE + bytes as u64,
        }
    }

    /// The type with this [`ElementType::code`], if there is one.
    pub fn from_code(code: u64) -> Option<Self> {
        match code.checked_sub(Self::OPAQUE) {
            Some(bytes) => usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).map(Self::Opaque),
            None => DataType::try_from(code as u32).ok().map(Self::Known),
        }
    }
}

impl From<DataType> for ElementType {
    fn from(dtype: DataType) -> Self {
        Self::Known(dtype)
    }
}

/// `float32`, or `elements of 12 bytes`.
impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(dtype) => dtype.fmt(f),
            Self::Opaque(bytes) => write!(f, "elements of {bytes} bytes"),
        }
    }
}

named_enum! {
    /// How two elements become one. The numbers are the C ABI's and never change.
    ReduceOp, "reduction operation", {
        /// `a + b`; integers wrap; logical or for `Bool`.
        Sum = 0, "sum";
        /// `a * b`; integers wrap; logical and for `Bool`.
        Product = 1, "product";
        /// The smaller; a NaN wins over numbers. Not for complex types.
        Min = 2, "min";
        /// The larger; a NaN wins over numbers. Not for complex types.
        Max = 3, "max";
        /// The sum, divided once at the end by the number of contributions; integers truncate towards zero. Not for
        /// `Bool`, nor for scan and exscan.
        Average = 4, "average";
        /// Bitwise and; integers and `Bool` only.
        BitAnd = 5, "and";
        /// Bitwise or; integers and `Bool` only.
        BitOr = 6, "or";
        /// Bitwise exclusive or; integers and `Bool` only.
        BitXor = 7, "xor";
    }
}

impl ReduceOp {
    /// Whether this operation is defined on elements of `dtype`.
    pub const fn supports(self, dtype: DataType) -> bool {
        use DataType::*;
        match self {
            Self::Sum | Self::Product => true,
            Self::Min | Self::Max => !matches!(dtype, Complex64 | Complex128),
            Self::Average => !matches!(dtype, Bool),
            Self::BitAnd | Self::BitOr | Self::BitXor => {
                !matches!(dtype, Float16 | Bfloat16 | Float32 | Float64 | Complex64 | Complex128)
            }
        }
    }
}
