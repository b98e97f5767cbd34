//! What a document may contain: a table of fields with types and what this program makes of each.

#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name as written.
    pub name: &'static str,
    /// What it may hold.
    pub ty: Type,
    /// What this program makes of it.
    pub support: Support,
    /// For people: what differs, why it is ignored, or what to do instead. May be empty for
    /// [`Support::Yes`] only.
    pub note: &'static str,
}

/// What a field may hold. Null is allowed everywhere and means "not set".
#[derive(Clone, Copy, Debug)]
pub enum Type {
    Bool,
    /// Text; a number or a bool must be quoted to be text.
    String,
    Int32,
    Int64,
    Float,
    /// A whole number of 32 bits, or text.
    IntOrString,
    /// A Kubernetes quantity, as text or as a number.
    Quantity,
    /// A duration as Go writes it, as text.
    Duration,
    /// A time (RFC 3339), as text.
    Time,
    List(&'static Type),
    /// A mapping with free keys.
    Map(&'static Type),
    Object(&'static [Field]),
    Any,
}

/// What this program makes of a known field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Honoured as Kubernetes does.
    Yes,
    /// Honoured, with a difference that the note tells.
    Differs,
    /// Known and not acted on, which is harmless: reported.
    Ignored,
    /// Known, and cannot be honoured: rejected.
    No,
}

impl Field {
    /// A field that is honoured as Kubernetes does.
    #[must_use]
    pub const fn yes(name: &'static str, ty: Type) -> Self {
        Self { name, ty, support: Support::Yes, note: "" }
    }

    /// A field that is honoured with a difference.
    #[must_use]
    pub const fn differs(name: &'static str, ty: Type, note: &'static str) -> Self {
        Self { name, ty, support: Support::Differs, note }
    }

    /// A field that is harmless to ignore.
    #[must_use]
    pub const fn ignored(name: &'static str, ty: Type, note: &'static str) -> Self {
        Self { name, ty, support: Support::Ignored, note }
    }

    /// A field that cannot be honoured.
    #[must_use]
    pub const fn no(name: &'static str, ty: Type, note: &'static str) -> Self {
        Self { name, ty, support: Support::No, note }
    }
}
