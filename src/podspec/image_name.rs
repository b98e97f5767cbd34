//! Image names, by the grammar that container tools share:
//! `[domain[:port]/]path[/path...][:tag][@algorithm:hex]`.

use thiserror::Error;

/// Longest repository path.
const MAX_PATH: usize = 255;
/// Longest tag.
const MAX_TAG: usize = 128;
/// Domain of names that have none.
const DEFAULT_DOMAIN: &str = "docker.io";

/// Why a text is no image name; `Display` is the wording of container tools.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// Not of the grammar.
    #[error("invalid reference format")]
    Format,
    /// A repository with capital letters.
    #[error("invalid reference format: repository name ({repository}) must be lowercase")]
    Uppercase {
        /// The repository without its domain.
        repository: String,
    },
    /// Indistinguishable from an image id.
    #[error("invalid repository name ({name}), cannot specify 64-byte hexadecimal strings")]
    LooksLikeId {
        /// The name.
        name: String,
    },
    /// A path beyond 255 characters.
    #[error("repository name must not be more than 255 characters")]
    TooLong,
    /// A digest with an unsupported algorithm.
    #[error("unsupported digest algorithm")]
    DigestAlgorithm,
    /// A digest of the wrong length for its algorithm.
    #[error("invalid checksum digest length")]
    DigestLength,
}

/// A name in its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts<'a> {
    /// Empty when not given.
    domain: &'a str,
    path: &'a str,
    tag: Option<&'a str>,
    digest: Option<&'a str>,
}

/// The name to ask the runtime for: `image` as written, with `:latest` where neither tag nor digest
/// is given.
///
/// # Errors
/// When it is no image name.
pub fn normalize(image: &str) -> Result<String, NameError> {
    let parts = parse(image)?;
    let bare = parts.tag.is_none() && parts.digest.is_none();
    Ok(if bare { format!("{image}:latest") } else { image.to_owned() })
}

/// The repository in full, without tag and digest: `docker.io/library/busybox` for `busybox`. What
/// credentials are matched against.
///
/// # Errors
/// When it is no image name.
pub fn repository(image: &str) -> Result<String, NameError> {
    let parts = parse(image)?;
    let domain = match parts.domain {
        "" | "index.docker.io" => DEFAULT_DOMAIN,
        domain => domain,
    };
    let official = domain == DEFAULT_DOMAIN && !parts.path.contains('/');
    let prefix = if official { "library/" } else { "" };
    Ok(format!("{domain}/{prefix}{}", parts.path))
}

/// The name as written, without tag and digest: `busybox` for `busybox:1`.
///
/// # Errors
/// When it is no image name.
pub fn untagged(image: &str) -> Result<&str, NameError> {
    let Parts { domain, path, .. } = parse(image)?;
    let slash = usize::from(!domain.is_empty());
    Ok(&image[..domain.len() + slash + path.len()])
}

/// Every name in full under which a runtime may list what `image` names:
/// `docker.io/library/busybox:latest` for `busybox`. An id, and what is no name, is itself among
/// them.
pub fn full_names(image: &str) -> Vec<String> {
    let mut names = vec![image.to_owned()];
    match (parse(image), repository(image)) {
        (Ok(parts), Ok(repository)) => {
            let tag = match (parts.tag, parts.digest) {
                (None, None) => Some("latest"),
                (tag, _) => tag,
            };
            names.extend(tag.map(|tag| format!("{repository}:{tag}")));
            names.extend(parts.digest.map(|digest| format!("{repository}@{digest}")));
        }
        (Err(NameError::LooksLikeId { name }), _) => names.push(format!("sha256:{name}")),
        (Ok(_) | Err(_), _) => {}
    }
    names
}

/// The tag and the digest, where given; neither for what is no image name.
pub fn tag_and_digest(image: &str) -> (Option<&str>, Option<&str>) {
    parse(image).map_or((None, None), |parts| (parts.tag, parts.digest))
}

fn parse(image: &str) -> Result<Parts<'_>, NameError> {
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if image.len() == 64 && image.bytes().all(is_hex) {
        return Err(NameError::LooksLikeId { name: image.to_owned() });
    }
    let (domain, remainder) = split_domain(image);
    let before_tag = remainder.split(':').next().unwrap_or("");
    if before_tag.chars().any(char::is_uppercase) {
        // A short name is shown as it is looked up.
        let official = domain.is_empty() && !remainder.contains('/');
        let prefix = if official { "library/" } else { "" };
        return Err(NameError::Uppercase { repository: format!("{prefix}{before_tag}") });
    }
    let (name, digest) = match remainder.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (remainder, None),
    };
    let (path, tag) = match name.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (name, None),
    };
    let valid = (domain.is_empty() || is_domain(domain))
        && path.split('/').all(is_path_component)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    if !valid {
        return Err(NameError::Format);
    }
    if path.len() > MAX_PATH {
        return Err(NameError::TooLong);
    }
    digest.map_or(Ok(()), check_digest)?;
    Ok(Parts { domain, path, tag, digest })
}

/// The first component is a domain when it can't be a path: it has a dot, a port or a capital, or
/// is `localhost`.
fn split_domain(image: &str) -> (&str, &str) {
    match image.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.chars().any(char::is_uppercase) =>
        {
            (first, rest)
        }
        Some(_) | None => ("", image),
    }
}

fn is_domain(domain: &str) -> bool {
    if let Some(rest) = domain.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else { return false };
        let colons_and_hex = |b: u8| b.is_ascii_hexdigit() || b == b':';
        let valid = !address.is_empty() && address.bytes().all(colons_and_hex);
        return valid && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
    }
    let (host, port) = match domain.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (domain, None),
    };
    port.is_none_or(is_port) && host.split('.').all(is_domain_component)
}

fn is_port(port: &str) -> bool {
    !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit())
}

fn is_domain_component(part: &str) -> bool {
    !part.is_empty()
        && !part.starts_with('-')
        && !part.ends_with('-')
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Runs of lowercase letters and digits, with one of `.`, `_`, `__` or any number of `-` between
/// them.
fn is_path_component(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    let ends =
        bytes.first().copied().is_some_and(plain) && bytes.last().copied().is_some_and(plain);
    let separator =
        |run: &[u8]| matches!(run, b"" | b"." | b"_" | b"__") || run.iter().all(|b| *b == b'-');
    ends && bytes.split(|b| plain(*b)).all(separator)
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= MAX_TAG
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let component = |part: &str| {
        part.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && part.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(component)
        && hex.len() >= 32
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

fn check_digest(digest: &str) -> Result<(), NameError> {
    let (algorithm, hex) = digest.split_once(':').unwrap_or((digest, ""));
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return Err(NameError::DigestAlgorithm),
    };
    if hex.len() != length {
        return Err(NameError::DigestLength);
    }
    // Capital hex digits are of the grammar, but no checksum is written with them.
    if hex.bytes().any(|b| b.is_ascii_uppercase()) { Err(NameError::Format) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
