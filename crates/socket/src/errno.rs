//! Error numbers as Linux has them.

use protocol::Failure;

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $number:literal),* $(,)?) => {
        /// Why a call failed.
        #[allow(clippy::upper_case_acronyms)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum Errno {
            $($(#[$doc])* $name = $number,)*
        }

        impl Errno {
            /// The number in `errno`.
            pub const fn number(self) -> i32 {
                self as i32
            }

            /// The error with that number, if sockets have it.
            pub const fn from_number(number: i32) -> Option<Errno> {
                match number {
                    $($number => Some(Errno::$name),)*
                    _ => None,
                }
            }

            /// Its name in `<errno.h>`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Errno::$name => stringify!($name),)*
                }
            }
        }
    };
}

errnos! {
    /// No such registration.
    ENOENT = 2,
    /// A signal came first.
    EINTR = 4,
    /// No such descriptor.
    EBADF = 9,
    /// Nothing now; ask again when ready.
    EAGAIN = 11,
    /// Registered already.
    EEXIST = 17,
    /// The call makes no sense on this socket now.
    EINVAL = 22,
    /// No more descriptors.
    EMFILE = 24,
    /// Nobody will read it.
    EPIPE = 32,
    /// Not a socket.
    ENOTSOCK = 88,
    /// Not an option of this socket; or the peer does not speak TCP.
    ENOPROTOOPT = 92,
    /// Not a call of this socket.
    EOPNOTSUPP = 95,
    /// An address of the other family.
    EAFNOSUPPORT = 97,
    /// The address and port are taken.
    EADDRINUSE = 98,
    /// Not our address, or no port left.
    EADDRNOTAVAIL = 99,
    /// Nobody runs the lane any more.
    ENETDOWN = 100,
    /// No route.
    ENETUNREACH = 101,
    /// Ended by this side.
    ECONNABORTED = 103,
    /// Reset by the peer.
    ECONNRESET = 104,
    /// A table or pool is full.
    ENOBUFS = 105,
    /// Connected already.
    EISCONN = 106,
    /// Not connected.
    ENOTCONN = 107,
    /// The peer or the path stayed silent.
    ETIMEDOUT = 110,
    /// Nobody listens.
    ECONNREFUSED = 111,
    /// The next hop does not answer.
    EHOSTUNREACH = 113,
    /// The connection is being opened.
    EALREADY = 114,
    /// The connection has begun to open.
    EINPROGRESS = 115,
}

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for Errno {}

impl From<Failure> for Errno {
    fn from(failure: Failure) -> Errno {
        match failure {
            Failure::Refused => Errno::ECONNREFUSED,
            Failure::ProtocolUnreachable => Errno::ENOPROTOOPT,
            Failure::Reset => Errno::ECONNRESET,
            Failure::TimedOut => Errno::ETIMEDOUT,
            Failure::HostUnreachable => Errno::EHOSTUNREACH,
            Failure::NetworkUnreachable => Errno::ENETUNREACH,
            Failure::AddressInUse => Errno::EADDRINUSE,
            Failure::AddressNotAvailable | Failure::TupleInUse => Errno::EADDRNOTAVAIL,
            Failure::NoBuffers => Errno::ENOBUFS,
            Failure::Aborted => Errno::ECONNABORTED,
        }
    }
}
