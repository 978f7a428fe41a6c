use super::*;
use crate::kafka::TopicId;

fn positions(places: &[(&str, u32, u64)]) -> Positions {
    places
        .iter()
        .map(|(topic, part, next)| (((*topic).to_owned(), *part), (*next).into()))
        .collect()
}

#[test]
fn it_goes_on_only_where_nothing_is_missed() {
    let look = AppliersLook {
        at_ms: 0,
        applied: positions(&[("own", 0, 10), ("own", 1, 0)]),
        others: positions(&[("feed", 0, 5)]),
        epoch: 0,
    };
    let own = |first, second| [("own", 0, first), ("own", 1, second)];
    let with = |own: [(&'static str, u32, u64); 2], feed| {
        let [first, second] = own;
        look.follows_from(&positions(&[first, second, ("feed", 0, feed)]))
    };
    assert!(with(own(10, 0), 5) && with(own(0, 0), 5));
    assert!(!with(own(11, 0), 5), "it is ahead of the appliers: another database");
    assert!(!with(own(10, 1), 5));
    assert!(!with(own(10, 0), 4), "a log that it cannot read went on");
    assert!(!look.follows_from(&positions(&own(10, 0))), "a log that it cannot read is new");
    assert!(!look.follows_from(&positions(&[("own", 0, 10), ("feed", 0, 5)])));
    assert!(!look.follows_from(&Positions::new()), "there are none");
    let of = |topic: u64| {
        let at = |next| LogPosition::at(next, TopicId(topic));
        let own = |part| ("own".to_owned(), part);
        Positions::from([(own(0), at(10)), (own(1), at(0))])
    };
    let look_of =
        |topic| AppliersLook { applied: of(topic), others: Positions::new(), at_ms: 0, epoch: 0 };
    assert!(look_of(1).follows_from(&of(1)));
    assert!(!look_of(1).follows_from(&of(2)), "the topic was made anew");
    let gone = [("own", 0, 10), ("own", 1, 0), ("feed", 0, 5), ("old", 0, 7)];
    assert!(look.follows_from(&positions(&gone)), "nobody applies that any more");
}
