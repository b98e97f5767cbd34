//! A certificate signing request of the node, and what the API server says of it
//! (<https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/>).

use super::super::{reflect::Watched, tls};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SanType};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::{collections::BTreeSet, net::IpAddr};

pub(super) const COLLECTION: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// What a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The node as a client of the API server.
    Client,
    /// The HTTPS API at these addresses: names and IP addresses.
    Serving(BTreeSet<String>),
}

impl Purpose {
    /// Who signs such certificates.
    fn signer(&self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving(_) => "kubernetes.io/kubelet-serving",
        }
    }

    fn usage(&self) -> &'static str {
        match self {
            Self::Client => "client auth",
            Self::Serving(_) => "server auth",
        }
    }
}

/// A request for a certificate. The same key makes a request of the same name, so an agent
/// that was killed goes on with the one it has sent.
pub(super) struct SigningRequest {
    pub(super) name: String,
    key: KeyPair,
    node_name: String,
    purpose: Purpose,
}

impl SigningRequest {
    pub(super) fn new(key: KeyPair, node_name: &str, purpose: Purpose) -> Self {
        let mut digest = Sha256::new();
        digest.update(key.subject_public_key_info());
        digest.update(format!("{node_name} {purpose:?}"));
        let name = format!("node-csr-{}", URL_SAFE_NO_PAD.encode(digest.finalize()));
        Self { name, key, node_name: node_name.to_owned(), purpose }
    }

    /// The key, as PEM.
    pub(super) fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// The object that is sent.
    pub(super) fn object(&self) -> Result<Value, rcgen::Error> {
        let mut params = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, "system:nodes");
        subject.push(DnType::CommonName, format!("system:node:{}", self.node_name));
        params.distinguished_name = subject;
        if let Purpose::Serving(addresses) = &self.purpose {
            let name = |address: &String| match address.parse::<IpAddr>() {
                Ok(ip) => Ok(SanType::IpAddress(ip)),
                Err(_) => address.as_str().try_into().map(SanType::DnsName),
            };
            params.subject_alt_names = addresses.iter().map(name).collect::<Result<_, _>>()?;
        }
        let request = params.serialize_request(&self.key)?.pem()?;
        Ok(json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": { "name": self.name },
            "spec": {
                "request": STANDARD.encode(request),
                "signerName": self.purpose.signer(),
                "usages": ["digital signature", self.purpose.usage()],
            },
        }))
    }

    /// What has become of the request.
    pub(super) fn answer(&self, seen: &Seen) -> Answer {
        let is = |kind: &str| {
            seen.status.conditions.iter().find(|one| one.kind == kind && one.status == "True")
        };
        for (kind, what) in [("Denied", "was denied"), ("Failed", "failed")] {
            if let Some(condition) = is(kind) {
                return Answer::Refused(format!(
                    "{what}: {}: {}",
                    condition.reason, condition.message
                ));
            }
        }
        let Some(issued) = seen.status.certificate.as_ref().filter(|_| is("Approved").is_some())
        else {
            return Answer::Wait { approved: is("Approved").is_some() };
        };
        match STANDARD.decode(issued) {
            Ok(pem) if tls::fit(&pem, self.key_pem().as_bytes()) => Answer::Issued(pem),
            Ok(_) | Err(_) => {
                Answer::Refused("got a certificate that is not for its key".to_owned())
            }
        }
    }
}

/// What has become of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nobody has approved it, or nobody has signed it yet.
    Wait { approved: bool },
    /// It will never be signed; why.
    Refused(String),
    /// The certificate and those of its issuers, PEM.
    Issued(Vec<u8>),
}

/// A CertificateSigningRequest, as far as it is of interest.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Seen {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    certificate: Option<String>,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
}

impl Watched for Seen {
    const MAX_WEIGHT: usize = 1 << 20;

    fn key(&self) -> String {
        self.metadata.name.clone()
    }

    fn weight(&self) -> usize {
        let texts = self.status.conditions.iter().map(|one| one.reason.len() + one.message.len());
        self.status.certificate.as_ref().map_or(0, String::len) + texts.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use rcgen::Issuer;
    use rustls_pki_types::{CertificateSigningRequestDer, pem::PemObject as _};
    use x509_cert::{der::Decode as _, request::CertReq};

    fn request() -> SigningRequest {
        SigningRequest::new(KeyPair::generate().unwrap(), "edge-1", Purpose::Client)
    }

    fn seen(status: &Value) -> Seen {
        serde_json::from_value(json!({ "metadata": { "name": "x" }, "status": status })).unwrap()
    }

    fn condition(kind: &str) -> Value {
        json!({ "type": kind, "status": "True", "reason": "R", "message": "m" })
    }

    /// A certificate for the key of a request.
    fn signed(request: &SigningRequest) -> String {
        let issuer = Issuer::new(CertificateParams::default(), KeyPair::generate().unwrap());
        let certificate = CertificateParams::default().signed_by(&request.key, &issuer).unwrap();
        STANDARD.encode(certificate.pem())
    }

    #[test]
    fn a_request_asks_for_the_names_of_the_node_and_nothing_else() {
        let info = |request: &SigningRequest| {
            let object = request.object().unwrap();
            let pem = STANDARD.decode(object["spec"]["request"].as_str().unwrap()).unwrap();
            let der = CertificateSigningRequestDer::from_pem_slice(&pem).unwrap();
            CertReq::from_der(&der).unwrap().info
        };
        let client = info(&request());
        assert_eq!(client.subject.to_string(), "CN=system:node:edge-1,O=system:nodes");
        assert_eq!(client.attributes.len(), 0, "no extensions");
        let purpose = Purpose::Serving(["10.0.0.5".to_owned(), "edge-1".to_owned()].into());
        let serving = SigningRequest::new(KeyPair::generate().unwrap(), "edge-1", purpose);
        assert_eq!(info(&serving).subject, client.subject);
        assert_eq!(info(&serving).attributes.len(), 1, "alternative names");
        let spec = &serving.object().unwrap()["spec"];
        assert_eq!(spec["signerName"], "kubernetes.io/kubelet-serving");
        assert_eq!(spec["usages"], json!(["digital signature", "server auth"]));
    }

    #[test]
    fn a_certificate_is_taken_when_it_is_approved_and_for_this_key() {
        let (request, other) = (request(), request());
        let certificate = signed(&request);
        let answer = |request: &SigningRequest, conditions: &[Value], certificate: Option<&str>| {
            request.answer(&seen(&json!({ "conditions": conditions, "certificate": certificate })))
        };
        let approved = [condition("Approved")];
        assert_eq!(answer(&request, &[], None), Answer::Wait { approved: false });
        assert_eq!(answer(&request, &approved, None), Answer::Wait { approved: true });
        assert_eq!(answer(&request, &[], Some(&certificate)), Answer::Wait { approved: false });
        let issued = answer(&request, &approved, Some(&certificate));
        assert!(matches!(issued, Answer::Issued(_)), "{issued:?}");
        let foreign = answer(&other, &approved, Some(&certificate));
        assert!(matches!(foreign, Answer::Refused(_)), "{foreign:?}");
        let denied = answer(&request, &[condition("Approved"), condition("Denied")], None);
        assert_eq!(denied, Answer::Refused("was denied: R: m".to_owned()));
    }

    #[test]
    fn the_same_key_makes_a_request_of_the_same_name() {
        let first = request();
        let again = |purpose| {
            let key = KeyPair::from_pem(&first.key_pem()).unwrap();
            SigningRequest::new(key, "edge-1", purpose).name
        };
        assert_eq!(again(Purpose::Client), first.name);
        assert_ne!(again(Purpose::Serving(BTreeSet::new())), first.name);
        assert_ne!(request().name, first.name);
    }
}
