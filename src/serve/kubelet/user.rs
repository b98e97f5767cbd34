//! Who sends a request, as far as the request itself tells.

use crate::model::hex;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::UserInfo;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use x509_cert::der::{
    Decode as _,
    asn1::{Ia5StringRef, PrintableStringRef, TeletexStringRef, Utf8StringRef},
    oid::{
        ObjectIdentifier,
        db::rfc4519::{COMMON_NAME, ORGANIZATION_NAME},
    },
};

/// Before a token in `Sec-WebSocket-Protocol`: a browser can set no other header.
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Somebody without credentials, where that is allowed.
pub(super) fn anonymous() -> UserInfo {
    UserInfo {
        username: Some("system:anonymous".to_owned()),
        groups: Some(vec!["system:unauthenticated".to_owned()]),
        ..UserInfo::default()
    }
}

/// Adds the group that every user who is known belongs to.
pub(super) fn authenticated(mut user: UserInfo) -> UserInfo {
    const GROUP: &str = "system:authenticated";
    let groups = user.groups.get_or_insert_default();
    if !groups.iter().any(|group| group == GROUP) {
        groups.push(GROUP.to_owned());
    }
    user
}

/// The user of a client certificate that was verified: the common name, with the organizations as
/// groups. `None` when it names nobody.
pub(super) fn of_certificate(der: &[u8]) -> Option<UserInfo> {
    let certificate = x509_cert::Certificate::from_der(der).ok()?;
    let (mut username, mut groups) = (None, Vec::new());
    for attribute in certificate.tbs_certificate().subject().iter() {
        match attribute.oid {
            COMMON_NAME => username = Some(text(&attribute.value)?),
            ORGANIZATION_NAME => groups.push(text(&attribute.value)?),
            ObjectIdentifier { .. } => {}
        }
    }
    let username = username.filter(|name| !name.is_empty())?;
    let id = format!("X509SHA256={}", hex(&Sha256::digest(der)));
    Some(UserInfo {
        username: Some(username),
        groups: Some(groups),
        extra: Some(BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![id])])),
        uid: None,
    })
}

fn text(value: &x509_cert::der::Any) -> Option<String> {
    let text = value
        .decode_as::<Utf8StringRef<'_>>()
        .map(|text| text.as_str().to_owned())
        .or_else(|_| value.decode_as::<PrintableStringRef<'_>>().map(|t| t.as_str().to_owned()))
        .or_else(|_| value.decode_as::<Ia5StringRef<'_>>().map(|t| t.as_str().to_owned()))
        .or_else(|_| value.decode_as::<TeletexStringRef<'_>>().map(|t| t.as_str().to_owned()));
    text.ok()
}

/// The bearer token of a request.
pub(super) fn token(headers: &HeaderMap) -> Option<String> {
    let header = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let (scheme, token) = header.and_then(|text| text.split_once(' ')).unwrap_or_default();
    let token = token.trim();
    if scheme.eq_ignore_ascii_case("Bearer") && !token.is_empty() {
        return Some(token.to_owned());
    }
    let encoded = protocols(headers).find_map(|name| name.strip_prefix(BEARER_PROTOCOL))?;
    let token = URL_SAFE_NO_PAD.decode(encoded.trim_end_matches('=')).ok()?;
    String::from_utf8(token).ok().filter(|token| !token.is_empty())
}

/// The WebSocket subprotocols of a request, without the one that carries a token.
pub(super) fn public_protocols(headers: &HeaderMap) -> String {
    let public = protocols(headers).filter(|name| !name.starts_with(BEARER_PROTOCOL));
    public.collect::<Vec<_>>().join(", ")
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let names = values.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    names.map(str::trim)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use http::HeaderValue;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    fn certificate(subject: DistinguishedName) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn the_subject_of_a_certificate_is_a_user_with_groups() {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, "system:nodes");
        subject.push(DnType::CountryName, "CH");
        subject.push(DnType::CommonName, DnValue::PrintableString("jane".try_into().unwrap()));
        let user = of_certificate(&certificate(subject)).unwrap();
        assert_eq!(user.username.as_deref(), Some("jane"));
        assert_eq!(user.groups, Some(vec!["system:nodes".to_owned()]));
        let id = &user.extra.as_ref().unwrap()[CREDENTIAL_ID][0];
        assert!(id.starts_with("X509SHA256=") && id.len() == 11 + 64, "{id}");
        let groups = authenticated(authenticated(user)).groups.unwrap();
        assert_eq!(groups, ["system:nodes", "system:authenticated"]);
        assert_eq!(of_certificate(&certificate(DistinguishedName::new())), None);
        assert_eq!(of_certificate(b"no certificate"), None);
    }

    #[test]
    fn tokens_are_in_a_header_or_a_subprotocol() {
        let of = |name: header::HeaderName, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
            (token(&headers), public_protocols(&headers))
        };
        let bearer = |value| of(header::AUTHORIZATION, value).0;
        assert_eq!(bearer("Bearer abc"), Some("abc".to_owned()));
        assert_eq!(bearer("bearer  abc "), Some("abc".to_owned()));
        for other in ["Bearer ", "Bearer", "Basic abc", ""] {
            assert_eq!(bearer(other), None, "{other:?}");
        }
        let encoded = format!("v4.channel.k8s.io, {BEARER_PROTOCOL}YWJj");
        let (token, public) = of(header::SEC_WEBSOCKET_PROTOCOL, &encoded);
        assert_eq!((token.as_deref(), &*public), (Some("abc"), "v4.channel.k8s.io"));
        let broken = format!("{BEARER_PROTOCOL}!!!");
        assert_eq!(of(header::SEC_WEBSOCKET_PROTOCOL, &broken).0, None);
    }
}
