use crate::{Error, Result, sys};

const MULTIPLE: usize = sys::GM_GATE_WIDTH_MULTIPLE as usize;

/// The number of rows of a gate's weight: a multiple of 256.
///
/// ```
/// use gatemix::GateWidth;
///
/// assert_eq!(GateWidth::new(16_384)?.get(), 16_384);
/// assert!(GateWidth::new(255).is_err());
/// # Ok::<(), gatemix::Error>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GateWidth(usize);

impl GateWidth {
    /// A width that is known at run time; see [`StaticGateWidth`] for constants.
    ///
    /// # Errors
    /// [`Error::Shape`] if `width` is not a multiple of 256.
    pub fn new(width: usize) -> Result<Self> {
        if width % MULTIPLE != 0 {
            return Err(Error::Shape(format!("width = {width} must be a multiple of {MULTIPLE}")));
        }
        Ok(Self(width))
    }

    /// The width as a number.
    pub const fn get(self) -> usize {
        self.0
    }
}

/// A gate width that is known at compile time, and does not compile if it is not a multiple of 256.
///
/// ```
/// use gatemix::{GateWidth, StaticGateWidth};
///
/// const WIDTH: GateWidth = StaticGateWidth::<512>::WIDTH;
/// assert_eq!(WIDTH.get(), 512);
/// ```
///
/// Name it in a `const`, as here: then `cargo check` finds the mistake too, not only `cargo build`.
#[derive(Copy, Clone, Debug)]
pub struct StaticGateWidth<const N: usize>;

impl<const N: usize> StaticGateWidth<N> {
    /// The width as a value.
    pub const WIDTH: GateWidth = {
        assert!(N % MULTIPLE == 0, "a gate width must be a multiple of 256");
        GateWidth(N)
    };
}
