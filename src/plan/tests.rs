mod dead;
mod hold;
mod picture;
mod properties;
mod scenarios;
mod shutdown;
mod tables;
mod world;
