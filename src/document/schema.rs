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
    /// For a field of a configuration: its default and its flag.
    pub setting: Option<&'static Setting>,
}

/// The default of a field and the command-line flag that sets it, as people see them.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The default as it is written in a document, or words for it. `None`: empty unless set.
    pub default: Option<&'static str>,
    /// The flag, without its dashes.
    pub flag: Option<&'static str>,
    /// The group of the flag in `--help`.
    pub heading: &'static str,
    /// What stands for the flag's value in `--help`; empty: what goes with the field's type.
    pub value: &'static str,
    /// `false` or 0 is not the same as unset, because the default is another value.
    pub zero_counts: bool,
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

impl Setting {
    /// Neither a default nor a flag.
    pub const NONE: Self =
        Self { default: None, flag: None, heading: "", value: "", zero_counts: false };

    /// With this default.
    #[must_use]
    pub const fn default(self, text: &'static str) -> Self {
        Self { default: Some(text), ..self }
    }

    /// Of a field whose `false` or 0 is not the same as unset.
    #[must_use]
    pub const fn zero_counts(self) -> Self {
        Self { zero_counts: true, ..self }
    }

    /// With this text for the flag's value.
    #[must_use]
    pub const fn value(self, value: &'static str) -> Self {
        Self { value, ..self }
    }
}

impl Field {
    /// With a default or a flag.
    #[must_use]
    pub const fn with(self, setting: &'static Setting) -> Self {
        Self { setting: Some(setting), ..self }
    }

    /// Its default as text.
    #[must_use]
    pub fn default(&self) -> Option<&'static str> {
        self.setting.and_then(|setting| setting.default)
    }

    /// A field that is honoured as Kubernetes does.
    #[must_use]
    pub const fn yes(name: &'static str, ty: Type) -> Self {
        Self { name, ty, support: Support::Yes, note: "", setting: None }
    }

    /// A field that is honoured with a difference.
    #[must_use]
    pub const fn differs(name: &'static str, ty: Type, note: &'static str) -> Self {
        Self { name, ty, support: Support::Differs, note, setting: None }
    }

    /// A field that is harmless to ignore.
    #[must_use]
    pub const fn ignored(name: &'static str, ty: Type, note: &'static str) -> Self {
        Self { name, ty, support: Support::Ignored, note, setting: None }
    }

    /// A field that cannot be honoured.
    #[must_use]
    pub const fn no(name: &'static str, ty: Type, note: &'static str) -> Self {
        Self { name, ty, support: Support::No, note, setting: None }
    }
}
