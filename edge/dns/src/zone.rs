//! What is answered: one address for the domain and everything below it.

use std::net::IpAddr;

use hickory_proto::ProtoError;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, NS, SOA};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

/// Seconds that resolvers may keep an answer. Short, so that another address is soon seen.
const TTL: u32 = 60;

/// Largest datagram that is sent to clients that can take more than 512 bytes. What we say ourselves never comes near.
const MOST_PAYLOAD: u16 = 1232;

/// A message is at least its header.
const HEADER_BYTES: usize = 12;

/// The domain and its address.
#[derive(Debug, Clone)]
pub struct Zone {
    domain: Name,
    address: IpAddr,
    soa: Record,
    ns: Record,
}

/// What to do with a message.
#[derive(Debug)]
pub enum Verdict {
    /// Send this back.
    Answer(Vec<u8>),
    /// It is about a name outside of the domain: pass it on, or send this refusal back.
    Elsewhere(Vec<u8>),
    /// It is no query; an answer could make two servers talk to each other forever.
    Ignore,
}

impl Zone {
    /// Answers `address` for `domain` and all names below it.
    ///
    /// # Errors
    /// When `domain` is not a name.
    pub fn new(domain: &str, address: IpAddr) -> Result<Self, ProtoError> {
        let mut domain = Name::from_ascii(domain)?.to_lowercase();
        domain.set_fqdn(true);
        let server = domain.prepend_label("ns")?;
        let mailbox = domain.prepend_label("hostmaster")?;
        let soa = SOA::new(server.clone(), mailbox, 1, 3600, 600, 86_400, TTL);
        Ok(Self {
            soa: Record::from_rdata(domain.clone(), TTL, RData::SOA(soa)),
            ns: Record::from_rdata(domain.clone(), TTL, RData::NS(NS(server))),
            domain,
            address,
        })
    }

    /// Decides about one message as it came from the wire.
    pub fn judge(&self, message: &[u8]) -> Verdict {
        match Message::from_vec(message) {
            Ok(query) if query.metadata.message_type == MessageType::Response => Verdict::Ignore,
            Ok(query) => self.judge_query(&query),
            Err(_) => malformed(message),
        }
    }

    fn judge_query(&self, query: &Message) -> Verdict {
        let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
        answer.metadata.recursion_desired = query.metadata.recursion_desired;
        answer.metadata.checking_disabled = query.metadata.checking_disabled;
        if query.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(MOST_PAYLOAD);
            answer.set_edns(edns);
        }
        let question = match (query.metadata.op_code, query.queries.as_slice()) {
            (OpCode::Query, [question]) => question,
            (OpCode::Query, _) => return encode(&mut answer, ResponseCode::FormErr, Verdict::Answer),
            _ => return encode(&mut answer, ResponseCode::NotImp, Verdict::Answer),
        };
        answer.add_query(question.clone());
        if question.query_class != DNSClass::IN || !self.domain.zone_of(&question.name) {
            return encode(&mut answer, ResponseCode::Refused, Verdict::Elsewhere);
        }
        answer.metadata.authoritative = true;
        match self.find(question) {
            Some(record) => answer.add_answer(record),
            // The name exists, but has nothing of this type.
            None => answer.add_authority(self.soa.clone()),
        };
        encode(&mut answer, ResponseCode::NoError, Verdict::Answer)
    }

    fn find(&self, question: &Query) -> Option<Record> {
        let data = match (question.query_type, self.address) {
            (RecordType::A | RecordType::ANY, IpAddr::V4(v4)) => RData::A(A(v4)),
            (RecordType::AAAA | RecordType::ANY, IpAddr::V6(v6)) => RData::AAAA(AAAA(v6)),
            (RecordType::SOA, _) if question.name == self.domain => return Some(self.soa.clone()),
            (RecordType::NS, _) if question.name == self.domain => return Some(self.ns.clone()),
            _ => return None,
        };
        // Spelt as it was asked: some resolvers vary capitals and compare.
        Some(Record::from_rdata(question.name.clone(), TTL, data))
    }
}

/// The answer to a query that cannot be answered now, as its header and question alone.
pub(crate) fn server_failure(query: &[u8]) -> Vec<u8> {
    let Ok(query) = Message::from_vec(query) else { return Vec::new() };
    let mut answer = Message::error_msg(query.metadata.id, query.metadata.op_code, ResponseCode::ServFail);
    answer.metadata.recursion_desired = query.metadata.recursion_desired;
    answer.add_queries(query.queries);
    answer.to_vec().unwrap_or_default()
}

fn encode(answer: &mut Message, code: ResponseCode, verdict: fn(Vec<u8>) -> Verdict) -> Verdict {
    answer.metadata.response_code = code;
    match answer.to_vec() {
        Ok(bytes) => verdict(bytes),
        Err(error) => {
            tracing::debug!(%error, "a DNS answer cannot be encoded");
            Verdict::Ignore
        }
    }
}

/// What cannot be read is answered as such when its header says that it is a query.
fn malformed(message: &[u8]) -> Verdict {
    const IS_RESPONSE: u8 = 0x80;
    match message {
        [high, low, flags, ..] if message.len() >= HEADER_BYTES && flags & IS_RESPONSE == 0 => {
            let id = u16::from_be_bytes([*high, *low]);
            let mut answer = Message::response(id, OpCode::Query);
            encode(&mut answer, ResponseCode::FormErr, Verdict::Answer)
        }
        _ => Verdict::Ignore,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn zone() -> Zone {
        Zone::new("hutch.test", "10.1.2.3".parse().unwrap()).unwrap()
    }

    fn ask(zone: &Zone, name: &str, kind: RecordType) -> Message {
        let mut query = Message::query();
        query.metadata.recursion_desired = true;
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let (Verdict::Answer(bytes) | Verdict::Elsewhere(bytes)) = zone.judge(&query.to_vec().unwrap())
        else {
            panic!("no answer")
        };
        let answer = Message::from_vec(&bytes).unwrap();
        assert_eq!(answer.metadata.id, query.metadata.id);
        assert_eq!(answer.metadata.message_type, MessageType::Response);
        assert_eq!(answer.queries, query.queries);
        answer
    }

    #[test]
    fn the_domain_and_every_name_below_have_the_address() {
        for name in
            ["hutch.test.", "api.hutch.test.", "3000-iabc0123456789xyz000.HUTCH.Test.", "a.b.hutch.test."]
        {
            let answer = ask(&zone(), name, RecordType::A);
            assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
            assert!(answer.metadata.authoritative);
            let [record] = answer.answers.as_slice() else { panic!("{answer:?}") };
            assert_eq!(record.data, RData::A("10.1.2.3".parse().unwrap()));
            assert!(record.name.eq_case(&Name::from_ascii(name).unwrap()), "spelt as asked");
        }
    }

    #[test]
    fn other_types_are_empty_and_say_for_how_long() {
        for kind in [RecordType::AAAA, RecordType::TXT, RecordType::HTTPS, RecordType::NS] {
            let answer = ask(&zone(), "api.hutch.test.", kind);
            assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
            assert!(answer.answers.is_empty(), "{kind}");
            assert_eq!(answer.authorities.len(), 1);
        }
        let v6 = Zone::new("hutch.test", "fd00::1".parse().unwrap()).unwrap();
        assert_eq!(ask(&v6, "api.hutch.test.", RecordType::AAAA).answers.len(), 1);
        assert!(ask(&v6, "api.hutch.test.", RecordType::A).answers.is_empty());
    }

    #[test]
    fn the_apex_has_its_own_records() {
        assert_eq!(ask(&zone(), "hutch.test.", RecordType::SOA).answers.len(), 1);
        assert_eq!(ask(&zone(), "hutch.test.", RecordType::NS).answers.len(), 1);
    }

    #[test]
    fn other_names_are_refused() {
        for name in ["example.com.", "test.", "hutch.test.example.com.", "nothutch.test."] {
            let answer = ask(&zone(), name, RecordType::A);
            assert_eq!(answer.metadata.response_code, ResponseCode::Refused, "{name}");
            assert!(answer.answers.is_empty());
        }
    }

    #[test]
    fn what_is_no_query_is_not_answered_as_one() {
        let mut response = Message::response(7, OpCode::Query);
        response.add_query(Query::query(Name::from_ascii("hutch.test.").unwrap(), RecordType::A));
        assert!(matches!(zone().judge(&response.to_vec().unwrap()), Verdict::Ignore));
        let Verdict::Answer(update) =
            zone().judge(&Message::new(9, MessageType::Query, OpCode::Update).to_vec().unwrap())
        else {
            panic!("no answer")
        };
        assert_eq!(Message::from_vec(&update).unwrap().metadata.response_code, ResponseCode::NotImp);
        let garbage = [0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xff];
        let Verdict::Answer(answer) = zone().judge(&garbage) else { panic!("no answer") };
        let answer = Message::from_vec(&answer).unwrap();
        assert_eq!((answer.metadata.id, answer.metadata.response_code), (9, ResponseCode::FormErr));
        assert!(matches!(zone().judge(&garbage[..11]), Verdict::Ignore));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            zone().judge(&bytes);
            server_failure(&bytes);
        }

        #[test]
        fn no_damaged_query_makes_it_panic(at in 0usize..40, byte: u8) {
            let mut query = Message::query();
            query.add_query(Query::query(Name::from_ascii("api.hutch.test.").unwrap(), RecordType::A));
            query.set_edns(Edns::new());
            let mut bytes = query.to_vec().unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            zone().judge(&bytes);
        }
    }
}
