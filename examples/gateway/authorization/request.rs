//! What an agent asks of a seller (binding 3.2), and what is wrong with a request.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};
use tower_rctp::{
    protocol::{
        grant::DETAILS_TYPE,
        policy::{Tier, Tiers},
    },
    wire::{from_base64url, jwk::Thumbprint},
};

use super::{Authorization, Client};

/// No query here is longer.
pub(super) const QUERY_LIMIT: usize = 8 * 1024;
/// No agent calls itself something longer.
const AGENT_ID_LIMIT: usize = 255;

/// A request that is as it must be.
pub(super) struct Asked<'a> {
    pub(super) client: &'a Client,
    pub(super) redirect_uri: String,
    pub(super) state: Option<String>,
    /// PKCE, `S256`.
    pub(super) challenge: String,
    pub(super) agent_id: String,
    pub(super) jkt: Option<String>,
    /// By scope; never empty, and none is `forbid`.
    pub(super) tiers: BTreeMap<String, Tier>,
}

/// A request that is not.
pub(super) enum Unfit {
    /// It does not say for certain where an answer may go, so it goes nowhere: whoever sits at the browser is told.
    Unanswerable(&'static str),
    /// The client is told.
    Refused {
        error: &'static str,
        description: &'static str,
        /// Where the browser is sent to tell it.
        location: String,
    },
}

/// An error for the client, with its description.
pub(super) type Problem = (&'static str, &'static str);

const INVALID_DETAILS: &str = "invalid_authorization_details";

impl Authorization {
    /// Reads an authorization request.
    pub(super) fn asked(&self, query: &str) -> Result<Asked<'_>, Unfit> {
        use Unfit::Unanswerable;
        if query.len() > QUERY_LIMIT {
            return Err(Unanswerable("the request is too long"));
        }
        let query = Parameters::read(query.as_bytes());
        let client = query
            .only("client_id")
            .and_then(|id| self.clients.get(id))
            .and_then(|client| Some((client, client.registration()?)));
        let Some((client, registration)) = client else {
            return Err(Unanswerable(
                "client_id does not name a client of this server",
            ));
        };
        let redirect_uri = query.only("redirect_uri").filter(|given| {
            let mut registered = registration.redirect_uris.iter();
            registered.any(|registered| same_redirect_uri(registered, given))
        });
        let Some(redirect_uri) = redirect_uri else {
            return Err(Unanswerable(
                "redirect_uri is not one that the client has registered",
            ));
        };
        let state = query.only("state");
        let refused = |(error, description): Problem| Unfit::Refused {
            error,
            description,
            location: self.answer(
                redirect_uri,
                state,
                &[("error", error), ("error_description", description)],
            ),
        };
        if query.repeated {
            return Err(refused(("invalid_request", "a parameter occurs twice")));
        }
        let challenge = check_flow(&query).map_err(refused)?;
        self.check_resource(query.only("resource"))
            .map_err(refused)?;
        let Details {
            agent_id,
            jkt,
            tiers: Asks(tiers),
            ..
        } = details(&query, client, &self.tiers).map_err(refused)?;
        Ok(Asked {
            client,
            redirect_uri: redirect_uri.to_owned(),
            state: state.map(str::to_owned),
            challenge: challenge.to_owned(),
            agent_id,
            jkt: jkt.map(|jkt| jkt.to_string()),
            tiers,
        })
    }

    /// Where the browser is sent with an answer, which says whose it is (RFC 9207).
    pub(super) fn answer(
        &self,
        redirect_uri: &str,
        state: Option<&str>,
        answer: &[(&str, &str)],
    ) -> String {
        // What was registered had no fragment, and what was asked for is the same.
        let separator = if redirect_uri.contains('?') { '&' } else { '?' };
        let mut location = format!("{redirect_uri}{separator}");
        let start = location.len();
        let mut query = url::form_urlencoded::Serializer::for_suffix(&mut location, start);
        query.extend_pairs(answer);
        query.extend_pairs(state.map(|state| ("state", state)));
        query.append_pair("iss", &self.issuer);
        query.finish().to_owned()
    }

    /// RFC 8707: a client that says where its tokens are for means the gateway, or something at it.
    pub(super) fn check_resource(&self, resource: Option<&str>) -> Result<(), Problem> {
        let Some(resource) = resource else {
            return Ok(());
        };
        match resource.strip_prefix(&self.issuer) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => Ok(()),
            _ => Err(("invalid_target", "tokens are for this gateway only")),
        }
    }
}

/// Response type, mode and PKCE; answers the challenge.
fn check_flow(query: &Parameters) -> Result<&str, Problem> {
    let invalid = |description| Err(("invalid_request", description));
    match query.only("response_type") {
        Some("code") => {}
        Some(_) => {
            return Err((
                "unsupported_response_type",
                "response_type has to be `code`",
            ));
        }
        None => return invalid("response_type is missing; write `code`"),
    }
    if query.only("response_mode").is_some_and(|m| m != "query") {
        return invalid("response_mode has to be `query`");
    }
    // What is in there would come before what is asked here.
    if query.only("request").is_some() {
        return Err(("request_not_supported", "request objects are not supported"));
    }
    if query.only("request_uri").is_some() {
        return Err((
            "request_uri_not_supported",
            "request objects are not supported",
        ));
    }
    let Some(challenge) = query.only("code_challenge") else {
        return invalid("code_challenge is missing; PKCE is required");
    };
    if query.only("code_challenge_method") != Some("S256") {
        return invalid("code_challenge_method has to be `S256`");
    }
    let sha256 = from_base64url(challenge).filter(|hash| hash.len() == 32);
    if sha256.is_none() {
        return invalid("code_challenge is no SHA-256 hash in base64url");
    }
    Ok(challenge)
}

/// What is asked for, within what the marketplace lets sellers grant.
fn details(query: &Parameters, client: &Client, offered: &Tiers) -> Result<Details, Problem> {
    let details = match (query.only("authorization_details"), query.only("scope")) {
        (Some(details), _) => serde_json::from_str::<[Details; 1]>(details).map_err(|_| {
            (
                INVALID_DETAILS,
                "authorization_details has to be one object in an array: type, agent_id, tiers by scope, and jkt for an \
                 agent that signs",
            )
        })?,
        (None, Some(scope)) => [Details::of_scope(scope, client, offered)?],
        (None, None) => {
            return Err((
                INVALID_DETAILS,
                "authorization_details is missing; write one object of type dev.rctp.agent_grant",
            ));
        }
    };
    let [details] = details;
    if details.kind != DETAILS_TYPE {
        return Err((INVALID_DETAILS, "the one type here is dev.rctp.agent_grant"));
    }
    let id = details.agent_id.as_bytes();
    if !(1..=AGENT_ID_LIMIT).contains(&id.len()) || !id.iter().all(u8::is_ascii_graphic) {
        return Err((
            INVALID_DETAILS,
            "agent_id has to be 1 to 255 visible ASCII characters",
        ));
    }
    let tiers = &details.tiers.0;
    if tiers.is_empty() {
        return Err((INVALID_DETAILS, "tiers, or scope alone, asks for nothing"));
    }
    for (scope, tier) in tiers {
        let Some(policy) = offered.get(scope) else {
            return Err((
                "invalid_scope",
                "tiers has a scope that this marketplace does not offer",
            ));
        };
        if *tier == Tier::Forbid || !policy.allowed_tiers.contains(tier) {
            return Err((
                INVALID_DETAILS,
                "tiers has a tier that this marketplace does not allow for its scope",
            ));
        }
    }
    // Clients of MCP put every scope that is on offer there, whatever their application asks for in the details.
    if let Some(scope) = query.only("scope") {
        let scopes: Vec<&str> = scope.split(' ').collect();
        if !scopes.iter().all(|scope| offered.get(scope).is_some()) {
            return Err((
                "invalid_scope",
                "scope has one that this marketplace does not offer",
            ));
        }
        if !tiers.keys().all(|scope| scopes.contains(&&**scope)) {
            return Err(("invalid_scope", "tiers has a scope that scope lacks"));
        }
    }
    Ok(details)
}

/// One of `authorization_details`. It is closed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Details {
    #[serde(rename = "type")]
    kind: String,
    agent_id: String,
    #[serde(default, deserialize_with = "present")]
    jkt: Option<Thumbprint>,
    tiers: Asks,
}

impl Details {
    /// What a client asks that knows OAuth and nothing of us, as MCP clients do: each scope at its default tier, without
    /// signatures. The seller sees and may lower it as any other.
    fn of_scope(scope: &str, client: &Client, offered: &Tiers) -> Result<Self, Problem> {
        let mut tiers = BTreeMap::new();
        for scope in scope.split(' ') {
            let policy = offered.get(scope).ok_or((
                "invalid_scope",
                "scope has one that this marketplace does not offer",
            ))?;
            // What is forbidden unless it is asked for by its tier, it has not asked for.
            if policy.default_tier != Tier::Forbid {
                tiers.insert(scope.to_owned(), policy.default_tier);
            }
        }
        Ok(Self {
            kind: DETAILS_TYPE.to_owned(),
            agent_id: client.id.clone(),
            jkt: None,
            tiers: Asks(tiers),
        })
    }
}

/// `null` is no way to leave a member out.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Tiers by scope, none of them twice.
pub(super) struct Asks(pub(super) BTreeMap<String, Tier>);

impl<'de> Deserialize<'de> for Asks {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Asks;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tiers by scope")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Asks, A::Error> {
                let mut all = BTreeMap::new();
                while let Some((scope, tier)) = map.next_entry()? {
                    if all.insert(scope, tier).is_some() {
                        return Err(de::Error::custom("a scope occurs twice"));
                    }
                }
                Ok(Asks(all))
            }
        }
        from.deserialize_map(Each)
    }
}

/// The parameters of a request. None may occur twice (RFC 6749 §3.1, §3.2), and an empty one is as good as left out.
pub(super) struct Parameters {
    all: BTreeMap<String, Vec<String>>,
    /// Whether one of them occurs twice.
    pub(super) repeated: bool,
}

impl Parameters {
    pub(super) fn read(form: &[u8]) -> Self {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in url::form_urlencoded::parse(form) {
            all.entry(name.into_owned())
                .or_default()
                .push(value.into_owned());
        }
        Self {
            repeated: all.values().any(|values| values.len() > 1),
            all,
        }
    }

    /// The value, if there is just one.
    pub(super) fn only(&self, name: &str) -> Option<&str> {
        match self.all.get(name).map(Vec::as_slice) {
            Some([value]) if !value.is_empty() => Some(value),
            _ => None,
        }
    }
}

/// Whether a client may register it; else what is wrong.
pub(super) fn check_redirect_uri(uri: &str) -> Result<(), &'static str> {
    let parsed = url::Url::parse(uri).map_err(|_| "is no URL")?;
    if uri.contains('#') {
        return Err("has a fragment");
    }
    if !uri.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("has characters that must be percent-encoded");
    }
    match parsed.scheme() {
        "https" => Ok(()),
        "http" if without_port(uri).is_some() => Ok(()),
        "http" => Err("is http, but not on loopback"),
        scheme if scheme.contains('.') => Ok(()),
        _ => Err("has a scheme that could be anybody's; write a domain name in reverse"),
    }
}

/// Whether they are the same, the port of one on loopback excepted (RFC 8252 §7.3).
fn same_redirect_uri(registered: &str, given: &str) -> bool {
    registered == given
        || matches!(
            (without_port(registered), without_port(given)),
            (Some(registered), Some(given)) if registered == given
        )
}

/// The host and the path of an `http` URI on loopback.
fn without_port(uri: &str) -> Option<(&str, &str)> {
    let rest = uri.strip_prefix("http://")?;
    let hosts = ["127.0.0.1", "[::1]", "localhost"];
    let host = hosts.into_iter().find(|host| rest.starts_with(host))?;
    let rest = &rest[host.len()..];
    let Some(port) = rest.strip_prefix(':') else {
        return ends_authority(rest).then_some((host, rest));
    };
    let digits = port.bytes().take_while(u8::is_ascii_digit).count();
    let (port, rest) = port.split_at(digits);
    (port.parse::<u16>().is_ok() && ends_authority(rest)).then_some((host, rest))
}

fn ends_authority(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with(['/', '?'])
}

#[cfg(test)]
mod tests {
    use super::{check_redirect_uri, same_redirect_uri};

    #[test]
    fn redirect_uris_are_the_same_byte_for_byte_but_for_the_port_of_loopback() {
        for (registered, given, same) in [
            ("https://a.example/cb", "https://a.example/cb", true),
            ("https://a.example/cb", "https://a.example/cb/", false),
            ("https://a.example/cb", "https://a.example/cb?x=1", false),
            ("https://a.example/cb", "https://a.example:443/cb", false),
            ("https://a.example/cb", "https://A.example/cb", false),
            ("https://a.example/cb", "https://a.example/x/../cb", false),
            ("https://a.example/cb", "https://a.example/cb#x", false),
            ("http://127.0.0.1/cb", "http://127.0.0.1/cb", true),
            ("http://127.0.0.1/cb", "http://127.0.0.1:51004/cb", true),
            ("http://127.0.0.1:1/cb", "http://127.0.0.1:2/cb", true),
            ("http://[::1]/cb", "http://[::1]:51004/cb", true),
            ("http://localhost/cb", "http://localhost:51004/cb", true),
            ("http://127.0.0.1/cb", "http://localhost:51004/cb", false),
            ("http://127.0.0.1/cb", "http://[::1]:51004/cb", false),
            ("http://127.0.0.1/cb", "https://127.0.0.1:51004/cb", false),
            ("http://127.0.0.1/cb", "http://127.0.0.1:51004/cb2", false),
            ("http://127.0.0.1/cb", "http://127.0.0.1:51004/cb?x", false),
            ("http://127.0.0.1/cb", "http://127.0.0.1:/cb", false),
            ("http://127.0.0.1/cb", "http://127.0.0.1:99999/cb", false),
            ("http://127.0.0.1/cb", "http://127.0.0.1:+1/cb", false),
            (
                "http://127.0.0.1/cb",
                "http://127.0.0.1:80@e.example/cb",
                false,
            ),
            (
                "http://127.0.0.1/cb",
                "http://127.0.0.1@e.example/cb",
                false,
            ),
            (
                "http://127.0.0.1/cb",
                "http://127.0.0.1.e.example/cb",
                false,
            ),
            ("http://127.0.0.1", "http://127.0.0.1.e.example", false),
            ("http://127.0.0.1", "http://127.0.0.1:80", true),
        ] {
            assert_eq!(same_redirect_uri(registered, given), same, "{given}");
        }
    }

    #[test]
    fn a_redirect_uri_that_others_could_receive_is_not_registered() {
        for good in [
            "https://a.example/cb?a=b",
            "http://127.0.0.1/cb",
            "http://[::1]:8000/cb",
            "http://localhost",
            "com.example.agent:/cb",
        ] {
            assert_eq!(check_redirect_uri(good), Ok(()), "{good}");
        }
        for bad in [
            "/cb",
            "http://a.example/cb",
            "http://127.0.0.1.a.example/cb",
            "https://a.example/cb#x",
            "https://a.example/c b",
            "javascript:alert(1)",
            "data:text/html,x",
            "agent:/cb",
        ] {
            assert!(check_redirect_uri(bad).is_err(), "{bad}");
        }
    }
}
