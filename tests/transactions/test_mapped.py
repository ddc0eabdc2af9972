"""SELECTs of mapped classes give objects, as the sphere has them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import ForeignKey, String, func, select, text, union_all
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    aliased,
    column_property,
    contains_eager,
    joinedload,
    mapped_column,
    relationship,
    selectinload,
    subqueryload,
)
from sqlalchemy.orm.exc import DetachedInstanceError

import activedb as adb
from tests.databases import PATIENCE_S, in_thread, lock_waits, until


@pytest.fixture
def shop(db: adb.Database) -> Any:
    """Two owners with a pet each; one of the pets is a dog, which lies in two tables."""

    class Base(DeclarativeBase):
        metadata = db.metadata

    class Owner(Base):
        __tablename__ = "owners"
        id: Mapped[int] = mapped_column(primary_key=True)
        called: Mapped[str | None] = mapped_column("name", String(20))
        pets = relationship("Pet", order_by="Pet.id", back_populates="owner")

    class Pet(Base):
        __tablename__ = "pets"
        id: Mapped[int] = mapped_column(primary_key=True)
        owner_id: Mapped[int | None] = mapped_column(ForeignKey("owners.id"))
        name: Mapped[str] = mapped_column(String(20))
        kind: Mapped[str] = mapped_column(String(10))
        owner = relationship("Owner", back_populates="pets")
        length = column_property(func.length(name))
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "pet"}  # noqa: RUF012

    class Dog(Pet):
        __tablename__ = "dogs"
        id: Mapped[int] = mapped_column(ForeignKey("pets.id"), primary_key=True)
        bark: Mapped[str] = mapped_column(String(10))
        __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012

    db.create_all()
    with db.transaction() as t:
        t.insert(Owner, {"id": 1, "name": "ann"})
        t.insert(Owner, {"id": 2, "name": "bob"})
        t.insert(Pet, {"id": 1, "owner_id": 1, "name": "rex", "kind": "dog"})
        t.insert(Dog, {"id": 1, "bark": "wow"})
        t.insert(Pet, {"id": 2, "owner_id": 2, "name": "tom", "kind": "pet"})
    return SimpleNamespace(db=db, owner=Owner, pet=Pet, dog=Dog)


def change(t: adb.Transaction, shop: Any) -> None:
    t.update(shop.owner, 1, name="eve")
    t.insert(shop.pet, {"id": 3, "owner_id": 1, "name": "bello", "kind": "dog"})
    t.insert(shop.dog, {"id": 3, "bark": "woof"})
    t.delete(shop.pet, 2)


def test_query_of_a_class_gives_detached_objects_of_the_sphere(shop: Any) -> None:
    owner = shop.owner
    with shop.db.transaction() as t:
        change(t, shop)
        with t.subtransaction() as s:
            found = s.query(select(owner).order_by(owner.id))
            assert [type(row[0]) for row in found] == [owner, owner]
            assert [(row.Owner.id, row.Owner.called) for row in found] == [(1, "eve"), (2, "bob")]
            again = s.query(select(owner).where(owner.id == 1))[0].Owner
            assert again is not found[0].Owner
            again.called = "changed here only"
            assert s.query(select(owner.called).where(owner.id == 1)) == [("eve",)]
    assert found[0].Owner.called == "eve"
    with pytest.raises(DetachedInstanceError):
        _ = found[0].Owner.pets


def test_query_of_attributes_gives_plain_rows(shop: Any) -> None:
    owner, pet = shop.owner, shop.pet
    with shop.db.transaction() as t:
        change(t, shop)
        assert t.query(select(owner.id, owner.called).order_by(owner.id)) == [
            (1, "eve"),
            (2, "bob"),
        ]
        assert t.query(select(pet.length).order_by(pet.id)) == [(3,), (5,)]
        joined = select(owner.called, func.count(pet.id)).outerjoin(owner.pets)
        assert sorted(t.query(joined.group_by(owner.called))) == [("bob", 0), ("eve", 2)]
        assert t.get(owner, 1) == {"id": 1, "name": "eve"}


@pytest.mark.parametrize("load", [joinedload, selectinload, subqueryload])
def test_query_with_an_eager_relationship_sees_the_sphere(shop: Any, load: Any) -> None:
    owner = shop.owner
    with shop.db.transaction() as t:
        change(t, shop)
        found = t.query(select(owner).options(load(owner.pets)).order_by(owner.id))
    assert [[pet.name for pet in row.Owner.pets] for row in found] == [["rex", "bello"], []]


@pytest.mark.parametrize("load", [joinedload, selectinload])
def test_query_with_an_eager_relationship_locks_what_it_loads(shop: Any, load: Any) -> None:
    owner, pet, db = shop.owner, shop.pet, shop.db
    values = {"id": 9, "owner_id": 1, "name": "x", "kind": "pet"}
    with db.transaction() as t:
        t.query(select(owner).options(load(owner.pets)))
        waits = lock_waits(db)
        writing = in_thread(db.run, lambda s: s.insert(pet, values))
        until(lambda: lock_waits(db) > waits)
    writing.result(PATIENCE_S)


def test_query_of_joined_and_plain_entities_and_aliases(shop: Any) -> None:
    owner, pet = shop.owner, shop.pet
    other = aliased(owner, name="other")
    with shop.db.transaction() as t:
        change(t, shop)
        both = select(owner, pet.name).join(pet.owner).order_by(pet.id)
        assert [(row.Owner.called, row.name) for row in t.query(both)] == [
            ("eve", "rex"),
            ("eve", "bello"),
        ]
        pairs = select(owner, other).where(owner.id < other.id)
        assert [(a.called, b.called) for a, b in t.query(pairs)] == [("eve", "bob")]
        eager = select(owner).join(owner.pets).options(contains_eager(owner.pets))
        assert [len(row.Owner.pets) for row in t.query(eager)] == [2]
        counted = select(owner, func.count(pet.id)).join(pet, isouter=True).group_by(owner.id)
        assert sorted((row[0].called, row[1]) for row in t.query(counted)) == [
            ("bob", 0),
            ("eve", 2),
        ]


def test_query_of_a_class_in_several_tables_is_right(shop: Any) -> None:
    pet, dog = shop.pet, shop.dog
    with shop.db.transaction() as t:
        change(t, shop)
        dogs = t.query(select(dog).order_by(dog.id))
        assert [(row.Dog.name, row.Dog.bark) for row in dogs] == [("rex", "wow"), ("bello", "woof")]
        pets = t.query(select(pet).order_by(pet.id))
        assert [type(row[0]) for row in pets] == [dog, dog]
        t.update(dog, 1, bark="wuff")
        assert t.query(select(dog.bark, dog.name).where(dog.id == 1)) == [("wuff", "rex")]


def test_query_of_a_class_from_text_or_a_union_sees_the_sphere(shop: Any) -> None:
    owner = shop.owner
    with shop.db.transaction() as t:
        change(t, shop)
        written = text("SELECT id, name FROM owners WHERE id = :key")
        found = t.query(select(owner).from_statement(written), {"key": 1})
        assert [row.Owner.called for row in found] == ["eve"]
        united = union_all(select(owner).where(owner.id == 1), select(owner).where(owner.id == 2))
        found = t.query(select(owner).from_statement(united))
        assert sorted(row.Owner.called for row in found) == ["bob", "eve"]


def test_query_of_a_class_leaves_the_transaction_as_it_was(shop: Any) -> None:
    owner = shop.owner
    with shop.db.transaction() as t:
        t.query(select(owner))
        t.update(owner, 1, name="eve")
        t.query(select(owner).options(selectinload(owner.pets)))
        t.update(owner, 2, name="joe")
    with shop.db.transaction() as t:
        assert t.query(select(owner.called).order_by(owner.id)) == [("eve",), ("joe",)]
