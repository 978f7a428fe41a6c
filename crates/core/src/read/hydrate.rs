//! Hydrate: everything that a feed needs about many objects, for one viewer.

use std::sync::Arc;

use guanxi_model::{
    EdgeKey, Error, Kind, KindId, NodeKey, NodeTypeId, SourceId, State, TargetId, TenantId, Which,
};

use super::{Checked, Reader, unreadable};

#[derive(Debug, Clone)]
pub struct HydrateQuery {
    pub tenant: TenantId,
    pub viewer: u64,
    pub objects: Vec<ReadObject>,
    pub kinds: Vec<Arc<Kind>>,
    pub tallies: Vec<Arc<Kind>>,
    pub reverse: Vec<Arc<Kind>>,
    pub object_type: NodeTypeId,
    pub author_type: NodeTypeId,
}

#[derive(Debug, Clone, Copy)]
pub struct ReadObject {
    pub id: u64,
    pub author: Option<u64>,
}

/// What is known of all objects of a query, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hydrated {
    relations: Vec<Checked>,
    /// One number per object and kind of `tallies`.
    numbers: Vec<i64>,
}

/// What is known of one object, by the places of the kinds asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HydratedObject<'a> {
    pub relations: &'a Checked,
    /// One number per kind of `tallies`.
    pub tallies: &'a [i64],
}

impl Hydrated {
    pub fn objects(&self) -> impl ExactSizeIterator<Item = HydratedObject<'_>> {
        let each = self.numbers.len() / self.relations.len().max(1);
        let of_object = move |(at, relations)| HydratedObject {
            relations,
            tallies: &self.numbers[at * each..(at + 1) * each],
        };
        self.relations.iter().enumerate().map(of_object)
    }
}

/// Which of an object's two nodes a kind is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AboutNode {
    Object,
    Author,
}

impl AboutNode {
    /// The object where the types fit, else its author.
    fn find(
        query: &HydrateQuery,
        node_type: NodeTypeId,
        what: &str,
        kind: &Kind,
    ) -> Result<AboutNode, Error> {
        match node_type {
            of if of == query.object_type => Ok(AboutNode::Object),
            of if of == query.author_type => Ok(AboutNode::Author),
            _ => Err(Error::invalid(format!(
                "{what}: kind {} is about neither the objects' nor the authors' node type",
                kind.name
            ))),
        }
    }

    fn id(self, object: &ReadObject) -> Option<u64> {
        match self {
            AboutNode::Object => Some(object.id),
            AboutNode::Author => object.author,
        }
    }

    fn node(self, query: &HydrateQuery, object: &ReadObject) -> Option<NodeKey> {
        let node_type = match self {
            AboutNode::Object => query.object_type,
            AboutNode::Author => query.author_type,
        };
        self.id(object).map(|id| NodeKey { tenant: query.tenant, node_type, id })
    }
}

/// The numbers that a query asks of one of an object's nodes.
struct WantedNumbers {
    about: AboutNode,
    wanted: Vec<(KindId, Which)>,
    /// Where each stands among the numbers of an object.
    places: Vec<usize>,
    read: Vec<i64>,
}

impl WantedNumbers {
    fn of(query: &HydrateQuery, abouts: &[AboutNode], about: AboutNode) -> WantedNumbers {
        let (mut wanted, mut places) = (Vec::new(), Vec::new());
        for (place, kind) in query.tallies.iter().enumerate() {
            if abouts[place] == about {
                let which = if kind.fixed.counter { Which::Value } else { Which::Incoming };
                wanted.push((kind.id, which));
                places.push(place);
            }
        }
        let read = vec![0; wanted.len()];
        WantedNumbers { about, wanted, places, read }
    }
}

impl HydrateQuery {
    /// The viewer's node type is what all kinds have as their source.
    fn check_viewer(&self) -> Result<(), Error> {
        let mut viewer_type = None;
        let sources = self.kinds.iter().map(|kind| (kind, kind.fixed.source_type));
        let targets = self.reverse.iter().map(|kind| (kind, kind.fixed.target_type));
        for (kind, node_type) in sources.chain(targets) {
            kind.require_edges()?;
            if *viewer_type.get_or_insert(node_type) != node_type {
                return Err(Error::invalid(format!(
                    "kind {} is not about a viewer of the same node type as the other kinds",
                    kind.name
                )));
            }
        }
        Ok(())
    }
}

impl Reader {
    pub fn hydrate(&self, query: &HydrateQuery) -> Result<Hydrated, Error> {
        query.check_viewer()?;
        let abouts = |kinds: &[Arc<Kind>], what: &str, reverse: bool| {
            let about = |kind: &Arc<Kind>| {
                let fixed = &kind.fixed;
                let node_type = if reverse { fixed.source_type } else { fixed.target_type };
                AboutNode::find(query, node_type, what, kind)
            };
            kinds.iter().map(about).collect::<Result<Vec<AboutNode>, Error>>()
        };
        let kinds = abouts(&query.kinds, "kinds", false)?;
        let tallies = abouts(&query.tallies, "tallies", false)?;
        let reverse = abouts(&query.reverse, "reverse", true)?;
        for kind in &query.tallies {
            if !kind.fixed.counter && !kind.fixed.incoming_tally {
                let message = format!("tallies: kind {} keeps no incoming tally", kind.name);
                return Err(Error::invalid(message));
            }
        }
        self.prefetch(|wanted| {
            wanted.kinds = query.tallies.iter().map(|kind| kind.id).collect();
            for object in &query.objects {
                let ids = |about: &AboutNode| about.id(object);
                for (kind, id) in query.kinds.iter().zip(kinds.iter().map(ids)) {
                    wanted.edges.extend(id.map(|id| edge(query, kind, query.viewer, id)));
                }
                for (kind, id) in query.reverse.iter().zip(reverse.iter().map(ids)) {
                    wanted.edges.extend(id.map(|id| edge(query, kind, id, query.viewer)));
                }
                for about in [AboutNode::Object, AboutNode::Author] {
                    if tallies.contains(&about) {
                        wanted.targets.extend(about.node(query, object));
                    }
                }
            }
        })?;
        let relations = |object| self.relations(query, &kinds, &reverse, object);
        let relations = query.objects.iter().map(relations).collect::<Result<Vec<_>, Error>>()?;
        let mut numbers = vec![0; query.objects.len() * tallies.len()];
        for about in [AboutNode::Object, AboutNode::Author] {
            let wanted = WantedNumbers::of(query, &tallies, about);
            self.numbers(query, wanted, &mut numbers)?;
        }
        Ok(Hydrated { relations, numbers })
    }

    fn relations(
        &self,
        query: &HydrateQuery,
        kinds: &[AboutNode],
        reverse: &[AboutNode],
        object: &ReadObject,
    ) -> Result<Checked, Error> {
        let mut relations = Checked::default();
        for (place, (kind, about)) in query.kinds.iter().zip(kinds).enumerate() {
            let Some(id) = about.id(object) else { continue };
            match self.state(&edge(query, kind, query.viewer, id))? {
                Some(State::Live) => relations.related.insert(place),
                Some(State::Pending) => relations.pending.insert(place),
                _ => {}
            }
        }
        for (place, (kind, about)) in query.reverse.iter().zip(reverse).enumerate() {
            let Some(id) = about.id(object) else { continue };
            if self.is_live(&edge(query, kind, id, query.viewer))? {
                relations.reverse.insert(place);
            }
        }
        Ok(relations)
    }

    /// A node's row has its numbers of all kinds, so each node is read once.
    fn numbers(
        &self,
        query: &HydrateQuery,
        mut wanted: WantedNumbers,
        numbers: &mut [i64],
    ) -> Result<(), Error> {
        if wanted.places.is_empty() {
            return Ok(());
        }
        let of_objects = numbers.chunks_exact_mut(query.tallies.len());
        for (object, numbers) in query.objects.iter().zip(of_objects) {
            let Some(node) = wanted.about.node(query, object) else { continue };
            let read = self.snapshot.target_numbers(&node, &wanted.wanted, &mut wanted.read);
            read.map_err(unreadable)?;
            for (place, number) in wanted.places.iter().zip(&wanted.read) {
                numbers[*place] = *number;
            }
        }
        Ok(())
    }
}

fn edge(query: &HydrateQuery, kind: &Kind, source: u64, target: u64) -> EdgeKey {
    EdgeKey {
        tenant: query.tenant,
        kind: kind.id,
        source: SourceId(source),
        target: TargetId(target),
    }
}
